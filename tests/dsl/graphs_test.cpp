// Expressions are graphs, which may be deep: nodes are walked once, and on a stack that has room for them.
#include <thread>

#include <fmt/format.h>

#include "dsl/deep.h"
#include "dsl/evaluate.h"
#include "dsl/interpret.h"
#include "dsl/simplify.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

template <class Step>
Expr grown(Expr value, int steps, const Step& step) {
    for (int n = 0; n < steps; ++n) value = step(value);
    return value;
}

Expr sum_of_both(const Expr& e) { return e + e; }
Expr choice(const Expr& e) { return select(e > 0.5, e * e, tanh(e) - e); }

TEST(Graphs, EqualOnesAreEqualWhoeverMadeThem) {
    Expr x = scalar("x", f32), y = scalar("y", f32);
    EXPECT_TRUE(equal(grown(x, 60, sum_of_both), grown(x, 60, sum_of_both)));
    EXPECT_FALSE(equal(grown(x, 60, sum_of_both), grown(y, 60, sum_of_both)));
    EXPECT_FALSE(equal(grown(x, 60, sum_of_both), grown(x, 59, sum_of_both)));
    EXPECT_FALSE(equal(grown(x + 1, 60, sum_of_both), grown(x + 2, 60, sum_of_both)));
}

TEST(Graphs, AreRewrittenInTheirOwnSize) {
    Expr x = scalar("x", f32), n = index_variable("n", 0, 7);
    EXPECT_EQ(depth_of(simplify(grown(x, 60, choice))), depth_of(grown(x, 60, choice)));
    EXPECT_TRUE(equal(substitute(grown(x, 60, choice), {{x, x * 2}}), grown(x * 2, 60, choice)));
    Expr remainder = grown(n, 60, [](const Expr& e) { return (e * e + 3) % 64; });
    EXPECT_EQ(bounds_of(remainder), (Interval{0, 63}));
    EXPECT_EQ(divisor_of(remainder * 4), 4);
    Expr squares = grown(n, 60, [](const Expr& e) { return e * e; });
    EXPECT_TRUE(prove(squares == squares).value_or(false));
}

TEST(Graphs, TextsEndSomewhere) {
    std::string text = to_string(grown(scalar("x", f32), 60, sum_of_both));
    EXPECT_LT(text.size(), 10000u);
    EXPECT_NE(text.find("..."), std::string::npos);
    EXPECT_EQ(to_string(grown(scalar("x", f32), 2, sum_of_both)), "x + x + (x + x)");
}

/// What one side of a condition uses is computed once there, and anew in the next run.
TEST(Graphs, AreEvaluatedInTheirOwnSize) {
    Tensor x = input("x", f32, {3});
    Tensor y = compute("y", {3}, [&](Expr i) { return grown(x(i), 60, choice); });
    HostArray values = host_array(f32, {3});
    for (int64_t i = 0; i < 3; ++i) values.set({i}, make_value(f32, 0.9 - 0.7 * static_cast<double>(i)));
    HostArray declared = interpret_plain({y}, {{{"x", values}}, {}, {}})[0];

    Expr argument = scalar("x", f32);
    SlotMap slots;
    CompiledExpr compiled(grown(argument, 60, choice), slots, {});
    EXPECT_LT(compiled.num_instructions(), 2000u);
    for (int64_t i = 0; i < 3; ++i) {
        float expected = static_cast<float>(values.at({i}).real);
        for (int n = 0; n < 60; ++n)
            expected = expected > 0.5f ? expected * expected : std::tanh(double{expected}) - expected;
        EXPECT_EQ(compiled.run({to_register(values.at({i}))}).real, declared.at({i}).real);
        EXPECT_NEAR(declared.at({i}).real, expected, 1e-5);
    }
}

TEST(DeepExpressions, AreWalked) {
    Expr x = scalar("x", f32), deep = grown(x, 40000, [](const Expr&e) { return e * 0.5 + 1; });
    EXPECT_EQ(depth_of(deep), 80001);
    EXPECT_TRUE(equal(simplify(deep), deep));
    EXPECT_EQ(variables_of(deep).size(), 1u);
    SlotMap slots;
    EXPECT_EQ(CompiledExpr(deep, slots, {}).run({to_register(make_value(f32, 7.0))}).real, 2.0);
}

TEST(DeepExpressions, AreDroppedWithoutRecursion) {
    Tensor x = input("x", f32, {4}), y = x;
    grown(scalar("x", f32), 1000000, [](const Expr& e) { return e + 1; });
    for (int n = 0; n < 100000; ++n) y = compute("y", {4}, [&](Expr i) { return y(i); });
}

// Memory of nodes is taken again: by the thread that gave them back, whichever made them, and as long as it lives.
TEST(Expressions, LiveInMemoryThatIsTakenAgain) {
    auto sums = [](int64_t first) {
        std::vector<Expr> made;
        for (int64_t k = 0; k < 10000; ++k) made.push_back(index_variable("i", 0, 10) + (first + k));
        return made;
    };
    auto expect_whole = [](const std::vector<Expr>& made, int64_t first) {
        for (size_t k = 0; k < made.size(); ++k)
            ASSERT_EQ(to_string(made[k]), fmt::format("i + {}", first + static_cast<int64_t>(k)));
    };
    std::vector<Expr> here = sums(1), there;
    std::thread([&] {
        there = sums(20000);
        here.clear();  // what another thread made
        const std::vector<Expr> again = sums(40000);
        expect_whole(again, 40000);
    }).join();
    expect_whole(there, 20000);  // whose thread is gone
    here = sums(60000);
    there.clear();
    there = sums(80000);
    expect_whole(here, 60000);
    expect_whole(there, 80000);
}

TEST(DeepExpressions, AreRefusedBeyondTheLimit) {
    Tensor x = input("x", f32, {4});
    auto declare = [&] {
        compute("y", {4}, [&](Expr i) { return grown(x(i), 60000, [](const Expr& e) { return e + 1; }); });
    };
    EXPECT_ERROR(declare(), "compute 'y': the expression is 60002 operations deep; at most 50000 are taken");
}

}  // namespace
}  // namespace tw

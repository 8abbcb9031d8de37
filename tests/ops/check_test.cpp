// Checking results against float64: right ones pass, a wrong element, a NaN and too large an error do not.
#include "ops/check.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dsl/schedule.h"
#include "ops/executable.h"
#include "ops/program.h"

namespace tw {
namespace {

struct Sums {
    Tensor x = input("x", f32, {6, 40});
    Axis k = reduce_axis("k", 40);
    Tensor y = compute("y", {6}, [&](Expr i) { return sum(x(i, k), k); });
    Bindings bindings = random_bindings({y}, 5);
    HostArray right = interpret_plain({y}, bindings)[0];

    /// With element 3 changed by `factor`.
    CheckResult check(double factor) const {
        HostArray changed = right;
        changed.set({3}, make_value(f32, right.at({3}).real * factor));
        return check_output(y, bindings, changed);
    }
};

TEST(CheckOutput, TheDeclaredComputationPasses) {
    Sums sums;
    CheckResult result = check_output(sums.y, sums.bindings, sums.right);
    EXPECT_TRUE(result.ok) << result.text;
    EXPECT_EQ(result.elements, 6);
    EXPECT_EQ(result.error, result.plain_error);
}

TEST(CheckOutput, AWrongElementDoesNot) {
    Sums sums;
    EXPECT_FALSE(sums.check(1.001).ok);
    EXPECT_FALSE(sums.check(std::numeric_limits<double>::quiet_NaN()).ok);
    EXPECT_FALSE(sums.check(std::numeric_limits<double>::infinity()).ok);
    EXPECT_NE(sums.check(1.001).text.find("WRONG"), std::string::npos);
}

TEST(CheckOutput, SamplesLargeOutputs) {
    Tensor x = input("x", f32, {100, 50});
    Tensor y = compute("y", {100, 50}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Bindings bindings = random_bindings({y}, 5);
    HostArray right = interpret_plain({y}, bindings)[0];
    EXPECT_EQ(check_output(y, bindings, right, {.samples = 64}).elements, 64);
    HostArray wrong = host_array(f32, {100, 50});
    EXPECT_FALSE(check_output(y, bindings, wrong, {.samples = 64}).ok);
}

// A rounding step costs what it may, and only where it was asked for.
TEST(CheckOutput, RoundingsAreAllowedFor) {
    Tensor x = input("x", f32, {64, 40}), v = input("v", f32, {40, 16});
    Axis k = reduce_axis("k", 40);
    Tensor p = compute("p", {64, 40}, [&](Expr i, Expr j) { return exp(x(i, j)); });
    Tensor y = compute("y", {64, 16}, [&](Expr i, Expr e) { return sum(p(i, k) * v(k, e), k); });
    Schedule s({y}, target("sm_90a"));
    auto [i, e] = s.loops<2>(y);
    auto [ib, it] = s.split(i, 16);
    s.order({ib, it, e});
    s.bind(ib, grid.x);
    s.bind(it, thread);
    s.bind(e, thread);
    s.at(p, ib);
    s.round_to(p, bf16);
    Program program = build(s);
    EXPECT_NE(program.cuda().find("bf16 p["), std::string::npos) << program.cuda();
    Bindings data = random_bindings({y}, 3);
    Executable executable(program, open_device("emulated"));
    HostArray got = run_on(executable, data)[0];
    EXPECT_FALSE(check_output(y, data, got).ok);
    CheckResult result = check_output(y, data, got, {.roundings = s.roundings()});
    EXPECT_TRUE(result.ok) << result.text;
}

TEST(RandomBindings, AreTheSameForASeed) {
    Tensor x = input("x", f32, {30}), at = input("at", i32, {30});
    Tensor y = compute("y", {30}, [&](Expr i) { return x(i) + cast(f32, at(i)); });
    auto data = [&](uint64_t seed) { return random_bindings({y}, seed).inputs["x"].bytes; };
    EXPECT_EQ(data(1), data(1));
    EXPECT_NE(data(1), data(2));
}

// Samples are computed from what they need: there is no room for the tensors between.
TEST(CheckOutput, SamplesNeedFewElementsOfWhatIsBetween) {
    constexpr int64_t Large = 100'000;
    Tensor a = input("a", f32, {Large, 4}), b = input("b", f32, {Large, 4});
    Axis r = reduce_axis("r", 4), q = reduce_axis("q", 3);
    Tensor product = compute("product", {3, Large, Large},
                             [&](Expr p, Expr i, Expr j) { return sum(a(i, r) * b(j, r), r) * cast(f32, p + 1); });
    Tensor both = compute("both", {Large}, [&](Expr i) { return sum(product(q, i, i * 7 % Large), q); });
    Tensor y = compute("y", {Large}, [&](Expr i) { return both(i) * product(0, i, i) + both(Large - 1 - i); });
    Bindings bindings = random_bindings({y}, 3);
    auto dot = [&](int64_t i, int64_t j) {
        double total = 0;
        for (int64_t k = 0; k < 4; ++k)
            total += bindings.inputs.at("a").at({i, k}).real * bindings.inputs.at("b").at({j, k}).real;
        return total;
    };
    auto value = [&](int64_t i) { return 6 * dot(i, i * 7 % Large); };
    HostArray right = host_array(f32, {Large}), wrong = right;
    for (int64_t i = 0; i < Large; ++i) {
        double element = value(i) * dot(i, i) + value(Large - 1 - i);
        right.set({i}, make_value(f32, element));
        wrong.set({i}, make_value(f32, element + 1));
    }
    CheckResult result = check_output(y, bindings, right, {.samples = 64});
    EXPECT_TRUE(result.ok) << result.text;
    EXPECT_FALSE(check_output(y, bindings, wrong, {.samples = 64}).ok);
}

}  // namespace
}  // namespace tw

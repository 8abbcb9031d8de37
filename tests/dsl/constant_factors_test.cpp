#include "dsl/constant_factors.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "dsl/evaluate.h"
#include "dsl/tree.h"

namespace tw {
namespace {

const MemoryView* no_memory(const ExprNode&) { return nullptr; }

Expr f(double value) { return constant(f32, value); }
const Expr lowest = f(-std::numeric_limits<double>::infinity());

struct Variables {
    Expr x = scalar("x", f32), y = scalar("y", f32), c = scalar("c", f32);
};

double value_of(const Expr& expr, const Variables& v, const std::vector<double>& values,
                Precision precision = Precision::Float64) {
    SlotMap slots;
    for (const Expr& each : {v.x, v.y, v.c}) slots.slot(each);
    CompiledExpr compiled(expr, slots, no_memory, precision);
    std::vector<Register> registers(static_cast<size_t>(slots.size()));
    for (size_t n = 0; n < values.size(); ++n) registers[n].real = values[n];
    return compiled.run(registers).real;
}

int operations(const Expr& expr) {
    int count = 0;
    visit(expr, [&](const Expr& node) {
        const Binary* binary = node.as<Binary>();
        count += binary && is_float(node.type());
    });
    return count;
}

TEST(ConstantFactors, AreOneOfEach) {
    const Variables v;
    const Expr seen = v.c > 0.0;
    EXPECT_TRUE(equal(join_constants(v.x * 2.0 * 3.0), v.x * 6.0));
    EXPECT_TRUE(equal(join_constants((v.x * 2.0 + 1.0) * 3.0 - 4.0), v.x * 6.0 + -1.0));
    EXPECT_TRUE(equal(join_constants(v.x / 4.0 * 2.0), v.x * 0.5));
    EXPECT_TRUE(equal(join_constants(tanh(v.x * 2.0 * 0.25) * 3.0 + v.y), tanh(v.x * 0.5) * 3.0 + v.y));
    EXPECT_TRUE(equal(join_constants(v.x * 30.0 * (v.y * f(1.0 / 30))), v.x * v.y));
    EXPECT_TRUE(equal(join_constants(f(1.0) - v.x * v.x), f(1.0) - v.x * v.x));

    const ScaledExpr masked = take_constants(select(seen, (v.x * 2.0 + 1.0) * 3.0, lowest));
    EXPECT_TRUE(equal(masked.rest, select(seen, v.x, lowest)));
    EXPECT_EQ(masked.factor, 6);
    EXPECT_EQ(masked.offset, 3);
    // -infinity times a negative factor would be another mask, and so would a factor of one side alone.
    EXPECT_TRUE(equal(take_constants(select(seen, v.x * -2.0, lowest)).rest, select(seen, v.x * -2.0, lowest)));
    EXPECT_TRUE(equal(take_constants(select(seen, v.x * 2.0, v.y)).rest, select(seen, v.x * 2.0, v.y)));
    // What a product of two values takes on costs nothing where one of them is the same for many.
    const ScaledExpr sum = take_constants(v.x * 0.25 + v.y * v.c);
    EXPECT_TRUE(equal(sum.rest, v.x + v.y * 4.0 * v.c));
    EXPECT_EQ(sum.factor, 0.25);
}

/// Masks that are added stay exact, and so does what only f32 could not hold.
TEST(ConstantFactors, LoseNoDigits) {
    const Variables v;
    const Expr seen = v.c > 0.0;
    const double f32_lowest = std::numeric_limits<float>::lowest();
    const std::vector<Expr> exprs{v.x * 0.125 + (f(1.0) - v.y) * -1e9,
                                  v.x * 0.125 + (v.y - 1.0) * 1e9,
                                  v.x * 0.125 + (f(1.0) - v.y) * f32_lowest,
                                  v.x * 0.125 + (f(1.0) - v.y) * -1e4,
                                  v.x * 1e20 * 1e-30 * 1e12,
                                  select(seen, v.x * 1e-30 * 1e-30, lowest),
                                  (v.x * 1e-20) * (v.y * 1e-20) * 1e30,
                                  (v.x + 12582912.0) - 12582912.0};
    for (const Expr& expr : exprs)
        for (double x : {-1.5, 0.3, 2.0, 1e-10})
            for (double y : {0.0, 1.0})
                for (double c : {-1.0, 1.0}) {
                    const std::vector<double> at{static_cast<float>(x), y, c};
                    const double expected = value_of(expr, v, at, Precision::Declared);
                    const ScaledExpr scaled = take_constants(expr);
                    const Expr behind = scaled.value();
                    for (const Expr& made : {join_constants(expr), behind}) {
                        const double value = value_of(made, v, at, Precision::Declared);
                        EXPECT_TRUE(value == expected ||
                                    std::abs(value - expected) <= 1e-6 * std::abs(expected) + 1e-37)
                            << to_string(expr) << "\n"
                            << to_string(made) << "\n"
                            << expected << " " << value;
                    }
                }
}

/// Equal as real numbers, in no more operations.
TEST(ConstantFactors, ChangeNoValue) {
    std::mt19937_64 random(3);
    auto pick = [&](int count) { return static_cast<int>(random() % static_cast<uint64_t>(count)); };
    const Variables v;
    auto number = [&] { return f((pick(15) + 1) / 4.0 * (pick(3) ? 1 : -1)); };
    std::function<Expr(int)> value = [&](int depth) -> Expr {
        if (depth == 0) return pick(2) ? v.x : v.y;
        switch (pick(9)) {
            case 0: return value(depth - 1) + number();
            case 1: return number() - value(depth - 1);
            case 2: return value(depth - 1) * number();
            case 3: return value(depth - 1) / number();
            case 4: return value(depth - 1) + value(depth - 1);
            case 5: return value(depth - 1) * value(depth - 2 < 0 ? 0 : depth - 2);
            case 6: return select(v.c > 0.0, value(depth - 1), lowest);
            case 7: return tanh(value(depth - 1));
            default: return -value(depth - 1);
        }
    };
    int fewer = 0;
    for (int round = 0; round < 2000; ++round) {
        const Expr expr = value(5), joined = join_constants(expr);
        const ScaledExpr scaled = take_constants(expr);
        ASSERT_GT(scaled.factor, 0);
        fewer += operations(joined) < operations(expr);
        for (double c : {-1.0, 1.0}) {
            const std::vector<double> at{pick(64) / 16.0 - 2, pick(64) / 16.0 - 2, c};
            const double expected = value_of(expr, v, at);
            for (double made :
                 {value_of(joined, v, at), value_of(scaled.rest, v, at) * scaled.factor + scaled.offset}) {
                if (std::isnan(expected)) continue;  // of -infinity and its opposite
                ASSERT_TRUE(made == expected || std::abs(made - expected) <= 1e-5 * (std::abs(expected) + 1e3))
                    << to_string(expr) << "\n"
                    << to_string(joined) << "\n"
                    << expected << " " << made;
            }
        }
    }
    EXPECT_GT(fewer, 500);
}

}  // namespace
}  // namespace tw

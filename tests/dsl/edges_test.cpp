// Arithmetic at the edges of its types: data wrap, places do not, and simplify() keeps the difference.
#include <limits>

#include <gtest/gtest.h>

#include "dsl/evaluate.h"
#include "dsl/simplify.h"
#include "tests/dsl/random_edge_expr.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

constexpr int64_t kMin32 = std::numeric_limits<int32_t>::min(), kMax32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min(), kMax64 = std::numeric_limits<int64_t>::max();

std::string simple(const Expr& expr) { return to_string(simplify(expr)); }

class EdgesTest : public testing::Test {
protected:
    Expr a = scalar("a", i32), b = scalar("b", i32), u = scalar("u", u32), v = scalar("v", i64), w = scalar("w", i64);
    Expr x = index_variable("x"), i = index_variable("i", 0, 7);
    Expr far = index_variable("far", int64_t{1} << 32, (int64_t{1} << 32) + 9);
    Expr min32 = constant(i32, kMin32), max32 = constant(i32, kMax32), min64 = constant(i64, kMin64);
    Expr bytes = make_expr(u8, Variable{.name = "bytes", .kind = VariableKind::Scalar});
    Expr chars = make_expr(i8, Variable{.name = "chars", .kind = VariableKind::Scalar});
};

TEST_F(EdgesTest, ComparisonsWithTheLeastAndTheLargest) {
    EXPECT_EQ(simple(max32 < a), "false");
    EXPECT_EQ(simple(a <= max32), "true");
    EXPECT_EQ(simple(a < min32), "false");
    EXPECT_EQ(simple(a < max32), "a < 2147483647");
    EXPECT_EQ(simple(min32 < a), "-2147483647 <= a");
    EXPECT_EQ(simple(a < a + 1), "a < a + 1");  // not at the largest
    EXPECT_EQ(simple(x < x + 1), "true");
    EXPECT_EQ(simple(v < v + 1), "v < v + 1");
    EXPECT_EQ(simple(cast(i64, a) < cast(i64, a) + 1), "true");
}

TEST_F(EdgesTest, QuotientsByTheLeast) {
    EXPECT_EQ(simple(a / min32), "a / -2147483648");
    EXPECT_EQ(simple(a % min32), "a % -2147483648");
    EXPECT_EQ(simple(x / min64), "x / -9223372036854775808");
    EXPECT_EQ(simple((a * 8 + b) / 8), "(a * 8 + b) / 8");  // the product wraps
    EXPECT_EQ(simple((cast(i64, a) * 8 + i) / 8), "cast(i64, a)");
    EXPECT_EQ(simple((x * 8 + i) / 8), "x");
}

TEST_F(EdgesTest, SumsAreARing) {
    EXPECT_EQ(simple(a + min32), "a + -2147483648");
    EXPECT_EQ(simple(a - min32), "a + -2147483648");
    EXPECT_EQ(simple(a + max32 + max32 + 2), "a");
    EXPECT_EQ(simple(a * constant(i32, 65536) * constant(i32, 65536)), "0");
    EXPECT_EQ(simple(a + b - a), "b");
}

TEST_F(EdgesTest, BoundsOfWhatWraps) {
    EXPECT_EQ(bounds_of(abs(a)), (Interval{kMin32, kMax32}));
    EXPECT_EQ(bounds_of(a * 2), (Interval{kMin32, kMax32}));
    EXPECT_EQ(bounds_of(max(v, 0) + 1), Interval{});
    EXPECT_EQ(bounds_of(max(v, 0)), (Interval{0, {}}));
    EXPECT_EQ(bounds_of(cast(i32, far)), (Interval{kMin32, kMax32}));
    EXPECT_EQ(bounds_of(cast(i32, far - (int64_t{1} << 32))), (Interval{0, 9}));
    EXPECT_EQ(divisor_of(v * 12), 4);
    EXPECT_EQ(divisor_of(x * 12), 12);
}

TEST_F(EdgesTest, AbsoluteValues) {
    EXPECT_TRUE(abs(u).same(u));
    EXPECT_EQ(simple(abs(-u)), "-u");
    EXPECT_EQ(simple(abs(-a)), "abs(a)");
}

TEST_F(EdgesTest, FloatsBetweenIntegersSaturate) {
    EXPECT_EQ(simple(cast(i8, cast(f32, bytes))), "cast(i8, cast(f32, bytes))");
    EXPECT_EQ(simple(cast(u8, cast(f32, chars))), "cast(u8, cast(f32, chars))");
    EXPECT_EQ(simple(cast(i8, cast(f64, a))), "cast(i8, cast(f64, a))");
    EXPECT_EQ(simple(cast(u32, cast(f64, a))), "cast(u32, cast(f64, a))");
    EXPECT_EQ(simple(cast(i32, cast(f64, u))), "cast(i32, cast(f64, u))");
    EXPECT_EQ(simple(cast(i32, cast(f32, bytes))), "cast(i32, bytes)");
    EXPECT_EQ(simple(cast(i32, cast(f64, a))), "a");
    EXPECT_EQ(simple(cast(i64, cast(f64, u))), "cast(i64, u)");
    EXPECT_EQ(simple(cast(bf16, cast(f64, a))), "cast(bf16, a)");
    EXPECT_EQ(simple(cast(f64, cast(f32, bytes))), "cast(f64, bytes)");
    EXPECT_EQ(simple(cast(i8, cast(i64, a))), "cast(i8, a)");
    EXPECT_EQ(simple(cast(boolean, cast(f64, a))), "cast(bool, a)");
    Expr quarter = make_expr(e5m2, Variable{.name = "quarter", .kind = VariableKind::Scalar});
    EXPECT_EQ(simple(cast(e5m2, cast(f32, quarter))), "cast(e5m2, cast(f32, quarter))");  // infinities become 57344
}

TEST_F(EdgesTest, WhatLeaves64BitsStaysInside) {
    Expr huge = x * (int64_t{1} << 62) * 4;
    EXPECT_EQ(affine_of(huge).terms.size(), 1u);
    Affine most = affine_of(x + kMax64), sum = most + most;
    EXPECT_EQ(sum.terms.size(), 1u);
    EXPECT_EQ(to_string(to_expr(affine_of(x * 3) - affine_of(x * kMin64))), "x * 3 - x * -9223372036854775808");
    EXPECT_EQ(bounds_of(huge), Interval{});
    EXPECT_GE(divisor_of(huge), 4);
    EXPECT_EQ(prove(huge < 5), std::nullopt);
    EXPECT_FALSE(span_of(huge, {{x.id(), {0, 7}}}));
}

// Random expressions. Other seeds: --gtest_shuffle --gtest_repeat=20.

constexpr int kExpressions = 20000;
constexpr int kSamples = 12;

const MemoryView* no_memory(const ExprNode&) { return nullptr; }

/// An expression, compiled, with its variables' slots.
class Compiled {
public:
    Compiled(const Expr& expr, const std::vector<Expr>& variables)
        : code_(expr, slots_, no_memory), registers_(variables.size()) {
        for (const Expr& v : variables) slot_.emplace_back(v, slots_.slot(v));
    }
    Value run(const Values& values) {
        for (const auto& [v, slot] : slot_) registers_[static_cast<size_t>(slot)] = to_register(values.at(v.id()));
        return code_.run(registers_);
    }

private:
    SlotMap slots_;
    CompiledExpr code_;
    std::vector<std::pair<Expr, int>> slot_;
    std::vector<Register> registers_;
};

TEST(EdgesProperty, SimplifyKeepsValuesAndIsIdempotent) {
    const int shuffled = GTEST_FLAG_GET(shuffle) ? testing::UnitTest::GetInstance()->random_seed() : 0;
    const uint64_t seed = 20261122 + static_cast<uint64_t>(shuffled);
    fmt::print("seed {}\n", seed);
    RandomEdgeExprs exprs(seed);
    int compared = 0;
    for (int round = 0; round < kExpressions; ++round) {
        Expr expr = exprs.any(static_cast<int>(exprs.pick(1, 4)));
        Expr result = simplify(expr);
        std::string context =
            fmt::format("seed {}, expression {}\n  {}\n  {}", seed, round, to_string(expr), to_string(result));
        ASSERT_TRUE(equal(simplify(result), result)) << context << "\n  " << to_string(simplify(result));
        Compiled compiled(expr, exprs.variables()), simplified(result, exprs.variables());
        Interval bounds = bounds_of(expr);
        int64_t divisor = is_integer(expr.type()) ? divisor_of(expr) : 1;
        for (int sample = 0; sample < kSamples; ++sample) {
            Values values = exprs.assignment();
            auto wanted = ValueByDefinition(values)(expr);
            // Where a condition that is always true leaves a place only, that may leave 64 bits where data would wrap.
            if (!wanted || !ValueByDefinition(values)(result)) continue;
            ++compared;
            int64_t value = wanted->integer;
            ASSERT_EQ(compiled.run(values).integer, value) << context << "\n  " << exprs.text_of(values);
            ASSERT_EQ(simplified.run(values).integer, value) << context << "\n  " << exprs.text_of(values);
            ASSERT_FALSE(bounds.min && *bounds.min > value) << context << "\n  " << exprs.text_of(values);
            ASSERT_FALSE(bounds.max && *bounds.max < value) << context << "\n  " << exprs.text_of(values);
            ASSERT_TRUE(divisor == 0 ? value == 0 : value % divisor == 0) << context << "\n  divisor " << divisor;
        }
    }
    EXPECT_GT(compared, kExpressions * kSamples / 2);
}

}  // namespace
}  // namespace tw

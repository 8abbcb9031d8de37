#include "dsl/simplify.h"

#include <chrono>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/dsl/random_expr.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

std::string simple(const Expr& expr) { return to_string(simplify(expr)); }

class SimplifyTest : public testing::Test {
protected:
    Expr i = index_variable("i", 0, 7), o = index_variable("o", 0, 7), t = index_variable("t", 0, 127);
    Expr x = index_variable("x", 0, 255), y = index_variable("y");
    Expr n = size("n", {.min = 128, .max = 4096, .multiple_of = 128}), m = size("m", {.min = 1, .max = 4096});
    Expr a = scalar("a", f32), b = scalar("b", f32);
    Expr p = scalar("p", boolean), q = scalar("q", boolean);

    static Expr index_below(const std::string& name, const Expr& extent) {
        return make_expr(Type::I64, Variable{.name = name, .extent = simplify(extent)});
    }
};

TEST_F(SimplifyTest, SplitsAndFuses) {
    EXPECT_EQ(simple((o * 8 + i) / 8), "o");
    EXPECT_EQ(simple((o * 8 + i) % 8), "i");
    EXPECT_EQ(simple((i / 4) % 2), "i / 4");
    EXPECT_EQ(simple(i % 8), "i");
    EXPECT_EQ(simple(x / 4 * 4 + x % 4), "x");
    EXPECT_EQ(simple((x + 3) / 4 * 4 + (x + 3) % 4), "x + 3");
    EXPECT_EQ(simple((x + y * 6) / 4 * 4 + (x + y * 2) % 4), simple(x + y * 6));
    EXPECT_NE(simple((x + y * 6) / 4 * 4 + (x + y * 3) % 4), simple(x + y * 6));
    EXPECT_EQ(simple((y % 49 * 64 + x) / 56 * 56 + (y * 8 + x) % 56), "y % 49 * 64 + x");
    EXPECT_EQ(simple(((y % 14 * 16 + x) / 112 * 48 + (y * 16 + x) % 112) % 64), simple((y % 14 * 16 + x) % 64));
    EXPECT_NE(simple(((y % 14 * 16 + x) / 112 * 40 + (y * 16 + x) % 112) % 64), simple((y % 14 * 16 + x) % 64));
    EXPECT_NE(simple((y % 48 * 64 + x) / 56 * 56 + (y * 8 + x) % 56), simple(y % 48 * 64 + x));
    EXPECT_EQ(simple(x / 32 * 32 + x / 8 % 4 * 8 + x % 8), "x");
    EXPECT_EQ(simple(x - x / 8 * 8), "x % 8");
    EXPECT_EQ(simple((x * 8 + y) / 12 % 3 * 12 + (x * 20 + y) % 12), "(x * 8 + y) % 36");
    EXPECT_EQ(simple((x - (x + 3) % 4 + 3) / 4), "(x + 3) / 4");
    EXPECT_EQ(simple(x % 32 / 8), "x / 8 % 4");
    EXPECT_EQ(simple(x / 2 / 4), "x / 8");
    EXPECT_EQ(simple((x * 6 + 5) / 4), "x * 3 / 2 + 1");
    EXPECT_EQ(simple((y * 4 + 2) / 8), "y / 2");
    EXPECT_EQ(simple((y * 4 + 2) % 8), "y % 2 * 4 + 2");
    EXPECT_EQ(simple((y - 1) % 8), "(y + 7) % 8");
    EXPECT_EQ(simple(y / -4), "-y / 4");
    EXPECT_EQ(simple(i * 8 - o * 8 + o * 8 - 3), "i * 8 - 3");
}

TEST_F(SimplifyTest, Words) {
    const Expr u = scalar("u", u32), v = scalar("v", u32), word = cast(u32, i);
    EXPECT_EQ(simple(u & 0), "0");
    EXPECT_EQ(simple(u & 0xffffffff), "u");
    EXPECT_EQ(simple((u | v) & (u | v)), "u | v");
    EXPECT_EQ(simple(u ^ v ^ 0), "u ^ v");
    EXPECT_EQ(simple((u ^ v) ^ (u ^ v)), "0");
    EXPECT_EQ(simple(6 ^ u ^ 5), "u ^ 3");
    EXPECT_EQ(simple(u | 0xffffffff), "4294967295");
    EXPECT_EQ(simple((u << 32) + (0 >> u)), "0");
    EXPECT_EQ(simple(u >> 0 << 0), "u");
    EXPECT_EQ(simple(mul_high(1, u)), "0");
    EXPECT_EQ(simple(mul_high(constant(u32, int64_t{1} << 31), constant(u32, 6))), "3");
    EXPECT_EQ(bounds_of(word ^ 5), (Interval{0, 7}));
    EXPECT_EQ(bounds_of(word << 2), (Interval{0, 28}));
    EXPECT_EQ(bounds_of((word | 16) >> 1), (Interval{8, 15}));
    EXPECT_EQ(bounds_of(word << 30), (Interval{0, 0xffffffff}));
    EXPECT_EQ(bounds_of(mul_high(u, 8)), (Interval{0, 7}));
    EXPECT_EQ(prove(cast(i64, u & 15) < 16), true);
}

TEST_F(SimplifyTest, NamedSizes) {
    Expr row = index_below("row", m), block = index_below("block", (m + 127) / 128),
         exact = index_below("exact", (n + 127) / 128);
    EXPECT_EQ(simple((n + 127) / 128), "n / 128");
    EXPECT_EQ(simple((n + 127) / 128 * 128), "n");
    EXPECT_EQ(simple((m + 127) / 128 * 128), "(m + 127) / 128 * 128");
    EXPECT_EQ(simple(row < m), "true");
    EXPECT_EQ(simple((i * m + row) / m), "i");
    EXPECT_EQ(simple((i * m + row) % m), "row");
    EXPECT_EQ(simple(y / m * m + y % m), "y");
    EXPECT_EQ(simple(exact * 128 + t < n), "true");
    EXPECT_EQ(simple(block * 128 < m), "true");
    EXPECT_EQ(simple(block * 128 + t < m), "block * 128 + t < m");
    EXPECT_EQ(simple((exact * 128 + t) / 128), "exact");
}

TEST_F(SimplifyTest, Comparisons) {
    EXPECT_EQ(simple(o * 8 + i < 64), "true");
    EXPECT_EQ(simple(o * 8 + i < 63), "o * 8 + i < 63");
    EXPECT_EQ(simple(y + 1 < x + 1), "y < x");
    EXPECT_EQ(simple(y * 8 + 3 < 64), "y < 8");
    EXPECT_EQ(simple(y / 8 < 4), "y < 32");
    EXPECT_EQ(simple(y / 8 >= 4), "32 <= y");
    EXPECT_EQ(simple(y * 2 == 5), "false");
    EXPECT_EQ(simple(y - x == y - x), "true");
    EXPECT_EQ(simple(y + 2 != 5), "y != 3");
    EXPECT_EQ(simple(!(x < y)), "y <= x");
    EXPECT_EQ(simple(x >= 0 && y < 100 && y < 50 && y < 70), "y < 50");
    EXPECT_EQ(simple(y < 10 && y > 20), "false");
    EXPECT_EQ(simple(y < 10 || y >= 10), "true");
    EXPECT_EQ(simple(p && q && p), "p && q");
    EXPECT_EQ(simple(p || !p), "true");
}

TEST_F(SimplifyTest, Choices) {
    EXPECT_EQ(simple(select(i < 8, x, y)), "x");
    EXPECT_EQ(simple(select(p, x, x)), "x");
    EXPECT_EQ(simple(select(!p, a, b)), "select(p, b, a)");
    EXPECT_EQ(simple(select(p, select(p, a, b), b)), "select(p, a, b)");
    EXPECT_EQ(simple(select(p, select(q, a, b), b)), "select(p && q, a, b)");
    EXPECT_EQ(simple(select(p, true, false)), "p");
    EXPECT_EQ(simple(min(x, x + 1)), "x");
    EXPECT_EQ(simple(max(x, 0)), "x");
    EXPECT_EQ(simple(max(0, y)), "max(y, 0)");
    EXPECT_EQ(simple(min(min(y, 9), 5)), "min(y, 5)");
    EXPECT_EQ(simple(min(y, max(y, x))), "y");
}

TEST_F(SimplifyTest, FloatsOnlyExactly) {
    EXPECT_EQ(simple(a * 1), "a");
    EXPECT_EQ(simple(1 * a), "a");
    EXPECT_EQ(simple(a / 1), "a");
    EXPECT_EQ(simple(-(-a)), "a");
    EXPECT_EQ(simple(a / 4), "a * 0.25");
    EXPECT_EQ(simple(a / 3), "a / 3.0");
    EXPECT_EQ(simple(a + 0), "a + 0.0");  // -0 + 0 = 0
    EXPECT_EQ(simple(a + -0.0), "a");
    EXPECT_EQ(simple(a - 0), "a");
    EXPECT_EQ(simple(a * 0), "a * 0.0");
    EXPECT_EQ(simple(a - a), "a - a");
    EXPECT_EQ(simple(a == a), "a == a");
    EXPECT_EQ(simple(!(a < b)), "!(a < b)");
    EXPECT_EQ(simple(fma(a, constant(f32, 1.0), b)), "a + b");
    EXPECT_EQ(simple(constant(f32, 0.1) + constant(f32, 0.2)), "0.3");
    EXPECT_EQ(simplify(Expr(0.1)).as<FloatConstant>()->value, double{0.1f});
    EXPECT_EQ(simple(exp(constant(f32, 1.0))), "exp(1.0)");
    EXPECT_EQ(simple(cast(f32, cast(f64, a))), "a");
    EXPECT_EQ(simple(cast(f32, cast(bf16, a))), "cast(f32, cast(bf16, a))");
}

TEST_F(SimplifyTest, UnsignedWraps) {
    Expr u = make_expr(u32, Variable{.name = "u"});
    EXPECT_EQ(simple(u + 0), "u");
    EXPECT_EQ(simple(u + 1 < u), "u + 1 < u");
    EXPECT_EQ(as_constant(simplify(constant(u32, int64_t{0xffffffff}) * constant(u32, int64_t{3}))), 0xfffffffd);
}

TEST_F(SimplifyTest, KeepsWhatWouldOverflow) {
    Expr huge = constant(i64, std::numeric_limits<int64_t>::max());
    EXPECT_EQ(simplify(y * huge * huge).type(), i64);
    EXPECT_EQ(simple(i < huge), "true");
    EXPECT_EQ(simple(min(i, huge)), "i");
}

TEST_F(SimplifyTest, SharedNodesTakeLinearTime) {
    Expr sum = y, product = x + 1, choice = y;
    for (int step = 0; step < 60; ++step) {
        sum = sum + sum % 7;
        product = min(product * 3, product + y);
        choice = select(choice < 5, choice + 1, choice);
    }
    EXPECT_TRUE(simplify(sum).defined());
    EXPECT_TRUE(bounds_of(choice) == Interval{} || bounds_of(choice).min);
    EXPECT_TRUE(simplify(product).defined());
}

TEST_F(SimplifyTest, Affine) {
    Affine form = affine_of((o * 8 + i) * 4 - i + 3 - o);
    EXPECT_EQ(to_string(to_expr(form)), "o * 31 + i * 3 + 3");
    EXPECT_EQ(coefficient(form, o), 31);
    EXPECT_EQ(coefficient(form, x), 0);
    EXPECT_EQ(coefficient(affine_of(o * 8 + o % 3), o), std::nullopt);
    Affine difference = affine_of(x * m + i) - affine_of(m * x);
    EXPECT_EQ(to_string(to_expr(difference)), "i");
    EXPECT_TRUE((form - form).terms.empty());
    EXPECT_EQ(to_string(to_expr(affine_of(64 - i) + affine_of(constant(i64, 1)))), "65 - i");
}

TEST_F(SimplifyTest, Bounds) {
    EXPECT_EQ(bounds_of(o * 8 + i), (Interval{0, 63}));
    EXPECT_EQ(bounds_of(y % 8), (Interval{0, 7}));
    EXPECT_EQ(bounds_of(i - i), (Interval{0, 0}));
    EXPECT_EQ(bounds_of(min(y, 5)), (Interval{{}, 5}));
    EXPECT_EQ(bounds_of(cast(i64, a)), (Interval{}));
    EXPECT_EQ(bounds_of(o * 8 + i, {{o.id(), {2, 3}}}), (Interval{16, 31}));
    EXPECT_EQ(prove(o * 8 + i < 64), true);
    EXPECT_EQ(prove(i > 9), false);
    EXPECT_EQ(prove(y > 9), std::nullopt);
}

/// What a minimum hides, where the rest of a sum is made of the same indices.
TEST_F(SimplifyTest, BoundsBySidesOfMinima) {
    const Expr steps = t * 3 / 2, all = min(steps + 2, 191);
    EXPECT_EQ(simple(max(all - steps - 1, 0)), simple(all - steps - 1));
    EXPECT_EQ(simple(max(steps - all, -2)), simple(steps - all));
    EXPECT_NE(simple(max(all - steps - 2, 0)), simple(all - steps - 2));  // -1 of the last
    EXPECT_EQ(simple(min(max(steps, 5) - steps, 5)), simple(max(steps, 5) - steps));
    EXPECT_EQ(prove(max(x, y) - x >= 0), true);
    EXPECT_EQ(prove(min(x, y) - x <= 0), true);
    EXPECT_EQ(prove(min(x, y) - x >= 0), std::nullopt);
    EXPECT_EQ(prove(min(x, t) - min(t, x) <= 0), true);
}

TEST_F(SimplifyTest, Divisors) {
    EXPECT_EQ(divisor_of(n), 128);
    EXPECT_EQ(divisor_of(n * 3 + i * 64), 64);
    EXPECT_EQ(divisor_of(n / 32), 4);
    EXPECT_EQ(divisor_of(constant(i64, 0)), 0);
    EXPECT_EQ(divisor_of(min(n, 64)), 64);
    const Expr of_data = scalar("of_data", i32), in_tiles = (cast(i64, of_data) + 47) / 48 * 48;
    EXPECT_EQ(divisor_of(max(min(in_tiles, 96) - i * 96, 0)), 48);
    EXPECT_EQ(divisor_of(in_tiles * scalar("wide", i64)), 16);  // which may wrap
    EXPECT_EQ(divisor_of(cast(i32, in_tiles)), 16);
}

TEST_F(SimplifyTest, Spans) {
    auto text = [](const std::optional<Span>& span) {
        return span ? fmt::format("{} + {}", to_string(span->lo), span->extent) : "none";
    };
    BoundsOverride inner = {{i.id(), {0, 7}}};
    EXPECT_EQ(text(span_of(o * 8 + i, inner)), "o * 8 + 8");
    EXPECT_EQ(text(span_of(o * 8 - i, inner)), "o * 8 - 7 + 8");
    EXPECT_EQ(text(span_of((o * 16 + i) / 4, inner)), "o * 4 + 2");
    EXPECT_EQ(text(span_of((y + i) / 4, inner)), "y / 4 + 3");
    EXPECT_EQ(text(span_of((y + i) % 4, inner)), "0 + 4");
    EXPECT_EQ(text(span_of((y * 16 + i) % 32, inner)), "y % 2 * 16 + 8");
    EXPECT_EQ(text(span_of(min(o * 8 + i, m - 1), inner)), "min(o * 8, m - 1) + 8");
    EXPECT_EQ(text(span_of(y, {{y.id(), {}}})), "none");
    EXPECT_EQ(text(unite({o * 8, 8}, {o * 8 + 4, 8})), "o * 8 + 12");
    EXPECT_EQ(text(unite({y, 8}, {x, 8})), "none");
}

// Random expressions.

constexpr uint64_t kSeed = 20240607;
constexpr int kExpressions = 20000;

std::string text_of(const RandomExprs& exprs, Assignment& values) {
    std::string text;
    for (const Expr& v : {exprs.i, exprs.o, exprs.j, exprs.k, exprs.x, exprs.n, exprs.m, exprs.e, exprs.f})
        text += fmt::format("{} = {}, ", to_string(v), values[v.id()]);
    return text;
}

TEST(SimplifyProperty, KeepsValuesAndIsIdempotent) {
    RandomExprs exprs(kSeed);
    for (int round = 0; round < kExpressions; ++round) {
        Expr expr = round % 4 ? exprs.integer(static_cast<int>(exprs.pick(1, 4))) : exprs.boolean(3);
        Expr result = simplify(expr);
        std::string context =
            fmt::format("seed {}, expression {}\n  {}\n  {}", kSeed, round, to_string(expr), to_string(result));
        ASSERT_TRUE(equal(simplify(result), result)) << context << "\n  " << to_string(simplify(result));
        Interval bounds = bounds_of(expr);
        int64_t divisor = is_integer(expr.type()) ? divisor_of(expr) : 1;
        for (int sample = 0; sample < 16; ++sample) {
            Assignment values = exprs.assignment();
            int64_t wanted = value_by_definition(expr, values);
            ASSERT_EQ(value_by_definition(result, values), wanted) << context << "\n  " << text_of(exprs, values);
            ASSERT_FALSE(bounds.min && *bounds.min > wanted) << context << "\n  " << text_of(exprs, values);
            ASSERT_FALSE(bounds.max && *bounds.max < wanted) << context << "\n  " << text_of(exprs, values);
            ASSERT_TRUE(divisor == 0 ? wanted == 0 : wanted % divisor == 0) << context << "\n  divisor " << divisor;
        }
    }
}

TEST(SimplifyProperty, KeepsValuesOnAllAssignmentsOfTwoIndices) {
    RandomExprs exprs(kSeed + 1);
    for (int round = 0; round < kExpressions / 10; ++round) {
        Substitution only_two;
        for (const Expr& v : {exprs.x, exprs.j, exprs.e, exprs.f}) only_two.emplace_back(v, exprs.i);
        for (const Expr& v : {exprs.o, exprs.n, exprs.m}) only_two.emplace_back(v, exprs.k + 6);
        Expr expr = substitute(exprs.integer(4), only_two);
        Expr result = simplify(expr);
        for (int64_t i = 0; i <= 7; ++i)
            for (int64_t k = -5; k <= 9; ++k) {
                Assignment values = {{exprs.i.id(), i}, {exprs.k.id(), k}};
                ASSERT_EQ(value_by_definition(result, values), value_by_definition(expr, values))
                    << "seed " << kSeed + 1 << "\n  " << to_string(expr) << "\n  " << to_string(result);
            }
    }
}

TEST(SimplifyProperty, SpansCoverAllValues) {
    RandomExprs exprs(kSeed + 2);
    int found = 0;
    for (int round = 0; round < kExpressions / 4; ++round) {
        Expr expr = exprs.integer(static_cast<int>(exprs.pick(1, 4)));
        BoundsOverride ranged;
        int64_t low = exprs.pick(0, 4), high = exprs.pick(low, 7);
        ranged[exprs.i.id()] = {low, high};
        if (exprs.pick(0, 1)) ranged[exprs.k.id()] = {-5, 9};
        auto span = span_of(expr, ranged);
        if (!span) continue;
        ++found;
        for (const auto& [variable, interval] : ranged)
            ASSERT_FALSE(contains(span->lo, variable == exprs.i.id() ? exprs.i : exprs.k));
        for (int sample = 0; sample < 16; ++sample) {
            Assignment values = exprs.assignment();
            values[exprs.i.id()] = exprs.pick(low, high);
            int64_t value = value_by_definition(expr, values), lo = value_by_definition(span->lo, values);
            ASSERT_TRUE(lo <= value && value < lo + span->extent)
                << "seed " << kSeed + 2 << ", expression " << round << "\n  " << to_string(expr) << "\n  i in " << low
                << ".." << high << ": " << to_string(span->lo) << " + " << span->extent << " lacks " << value << "\n  "
                << text_of(exprs, values);
        }
    }
    EXPECT_GT(found, kExpressions / 16);
}

TEST(SimplifyProperty, UnionsCoverBoth) {
    RandomExprs exprs(kSeed + 3);
    for (int round = 0; round < kExpressions / 10; ++round) {
        Expr base = exprs.integer(2);
        Span a{base + exprs.integer(1), exprs.pick(1, 9)}, b{base + exprs.integer(1), exprs.pick(1, 9)};
        auto both = unite(a, b);
        if (!both) continue;
        for (int sample = 0; sample < 16; ++sample) {
            Assignment values = exprs.assignment();
            int64_t lo = value_by_definition(both->lo, values);
            for (const Span& part : {a, b}) {
                int64_t start = value_by_definition(part.lo, values);
                ASSERT_TRUE(lo <= start && start + part.extent <= lo + both->extent)
                    << to_string(a.lo) << " | " << to_string(b.lo);
            }
        }
    }
}

/// Nodes know that they are simple. What other bounds say of a node is nothing that it knows, nor the other way around.
TEST(Simplify, RemembersNothingOfOtherBounds) {
    Expr x = index_variable("x", 0, 7), y = index_variable("y", 0, 31);
    Expr small = x % 16, large = y % 16;
    EXPECT_EQ(bounds_of(small, {{x.id(), {0, 100}}}), (Interval{0, 15}));
    EXPECT_TRUE(simplify(small).same(x)) << to_string(simplify(small));
    EXPECT_TRUE(simplify(large).same(large));
    EXPECT_EQ(bounds_of(large, {{y.id(), {18, 19}}}), (Interval{2, 3}));
    EXPECT_EQ(bounds_of(large * 8 + 1, {{y.id(), {18, 19}}}), (Interval{17, 25}));
    EXPECT_TRUE(simplify(large).same(large));
}

TEST(SimplifySpeed, TypicalIndex) {
    Expr block = index_variable("block", 0, 31), t = index_variable("t", 0, 127), i = index_variable("i", 0, 7);
    Expr m = size("m", {.min = 1, .max = 4096});
    Expr row = block * 128 + t / 16 * 8 + i, column = block * 64 + t % 16 * 4 + i / 2;
    Expr index = select(row < m && column < 512, (row * 512 + column) / 8 * 8 + t % 8, 0);
    constexpr int runs = 500;
    auto start = std::chrono::steady_clock::now();
    for (int run = 0; run < runs; ++run) simplify(index);
    std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    RecordProperty("microseconds", static_cast<int>(time.count() / runs));
    EXPECT_LT(time.count() / runs, 2000);  // 20 us in a release build; sanitizers and busy machines take longer
}

}  // namespace
}  // namespace tw

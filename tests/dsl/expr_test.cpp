#include "dsl/expr.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dsl/tensor.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class ExprTest : public testing::Test {
protected:
    Expr i = index_variable("i", 0, 7), j = index_variable("j", 0, 7);
    Expr a = scalar("a", f32), d = scalar("d", f64), w = scalar("w", i32), u = scalar("u", u32),
         p = scalar("p", boolean);
    Expr h = make_expr(bf16, Variable{.name = "h"});
    Expr c = make_expr(i8, Variable{.name = "c"});
};

TEST_F(ExprTest, LiteralsTakeTheOtherType) {
    EXPECT_EQ((a * 2).type(), f32);
    EXPECT_EQ((2 * d).type(), f64);
    EXPECT_EQ((a + 0.5).type(), f32);
    EXPECT_EQ((w + 1).type(), i32);
    EXPECT_EQ((i + 1).type(), i64);
    EXPECT_EQ((w + i).type(), i64);
    EXPECT_EQ((a < 1).type(), boolean);
    EXPECT_EQ((d * 0.1).as<Binary>()->b.as<FloatConstant>()->value, 0.1);
    EXPECT_EQ((a * 0.1).as<Binary>()->b.as<FloatConstant>()->value, double{0.1f});
    EXPECT_EQ(select(p, h, 0).type(), bf16);
    EXPECT_EQ(select(p, 1.0, 0.0).type(), f32);
    EXPECT_EQ(sqrt(2).type(), f32);
    EXPECT_EQ((Expr(1) + Expr(2)).type(), i64);
    EXPECT_EQ(select(p, a, -Expr(1)).type(), f32);
    EXPECT_EQ(Expr(true).type(), boolean);
}

TEST_F(ExprTest, Printing) {
    EXPECT_EQ(to_string((i * 8 + j) / 3 % 2), "(i * 8 + j) / 3 % 2");
    EXPECT_EQ(to_string(i - (j - 1)), "i - (j - 1)");
    EXPECT_EQ(to_string(i + (j + 1)), "i + (j + 1)");
    EXPECT_EQ(to_string(i * (j / 2)), "i * (j / 2)");
    EXPECT_EQ(to_string(-(i + j)), "-(i + j)");
    EXPECT_EQ(to_string(!(i < j) || (p && i == 0)), "!(i < j) || p && i == 0");
    EXPECT_EQ(to_string((p || i < j) && p), "(p || i < j) && p");
    EXPECT_EQ(to_string(i > j), "j < i");
    EXPECT_EQ(to_string(select(i < j, min(a, 0.5), a)), "select(i < j, min(a, 0.5), a)");
    EXPECT_EQ(to_string(cast(bf16, a * 2)), "cast(bf16, a * 2.0)");
    EXPECT_EQ(to_string(fma(a, a, a)), "fma(a, a, a)");
    EXPECT_EQ(to_string((u & 255) ^ u ^ (u << 3)), "(u & 255) ^ u ^ (u << 3)");
    EXPECT_EQ(to_string((u >> 4) + (u | 1) * mul_high(u, 7)), "(u >> 4) + (u | 1) * mul_high(u, 7)");
    EXPECT_EQ(to_string(((u + 1) & (u * 2)) == u), "((u + 1) & (u * 2)) == u");
    EXPECT_EQ(to_string(a + 0.1), "a + 0.1");
    EXPECT_EQ(to_string(constant(f32, -std::numeric_limits<double>::infinity())), "-infinity");
    EXPECT_EQ(to_string(constant(f32, NAN)), "nan");
    EXPECT_EQ(to_string(a - -1), "a - -1.0");
    EXPECT_EQ(to_string(exp(a) * Expr(1e30)), "exp(a) * 1e+30");
    EXPECT_EQ(to_string(Expr(false)), "false");
    EXPECT_EQ(to_string(Expr()), "undefined");
}

TEST_F(ExprTest, Errors) {
    EXPECT_ERROR(h * 2, "expr_test.cpp:");
    EXPECT_ERROR(h * 2, "operator*: bf16 is a storage type; arithmetic needs cast(f32, x)");
    EXPECT_ERROR(1 + c, "operator+: i8 is a storage type; arithmetic needs cast(i32, x)");
    EXPECT_ERROR(p + 1, "operator+: bool has no arithmetic; use select(condition, 1, 0)");
    EXPECT_ERROR(tanh_approx(d), "tanh_approx of f64: it is an instruction for f32; use tanh");
    EXPECT_ERROR(a * d, "operator*: f32 and f64 do not mix; convert one, e.g. cast(f32, x)");
    EXPECT_ERROR(i * a, "operator*: i64 and f32 do not mix; convert one, e.g. cast(f32, x)");
    EXPECT_ERROR(i * 0.5, "operator*: the literal 0.5 does not fit i64; convert the other operand: cast(f32, x)");
    EXPECT_ERROR(u + -1, "operator+: the literal -1 does not fit u32; convert the other operand: cast(i64, x)");
    EXPECT_ERROR(w < (int64_t{1} << 40), "operator<: the literal 1099511627776 does not fit i32");
    EXPECT_ERROR(select(p, p, 1), "select: the literal 1 meets bool; write true or false, or compare first");
    EXPECT_ERROR(truncate_tf32(i), "truncate_tf32: takes an f32, not i64; use cast(f32, ...)");
    EXPECT_ERROR(exp(i), "exp: i64 is no float type; write exp(cast(f32, x))");
    EXPECT_ERROR(i & 7, "operator&: takes the bits of u32, not i64; use cast(u32, x)");
    EXPECT_ERROR(u << w, "operator<<: takes the bits of u32, not i32; use cast(u32, x)");
    EXPECT_ERROR(mul_high(a, u), "mul_high: takes the bits of u32, not f32; use cast(u32, x)");
    EXPECT_ERROR(p | p, "operator|: bool is one bit; conditions have &&, ||, == and !=");
    EXPECT_ERROR(u ^ -1, "operator^: the literal -1 does not fit u32");
    EXPECT_ERROR(gelu(h), "gelu: bf16 is a storage type");
    EXPECT_ERROR(p && i, "operator&&: expects bool, not i64; compare first, e.g. x != 0");
    EXPECT_ERROR(select(i, a, a), "select: expects bool, not i64");
    EXPECT_ERROR(a % 2, "operator%: f32 has no remainder; only integers do");
    EXPECT_ERROR(i / 0, "operator/: division of i by zero");
    EXPECT_ERROR(Expr() + 1, "an operand is undefined; give every Expr and every Axis a value before it is used");
    EXPECT_ERROR(scalar("alpha", f16), "scalar 'alpha': f16 is a storage type; pass it as f32");
    EXPECT_ERROR((size("n", {.max = 8, .multiple_of = 0})), "size 'n': multiple_of is 0; it starts at 1");
    EXPECT_ERROR((size("n", {.min = -1, .max = 8})), "size 'n': min is -1; sizes start at 0");
    EXPECT_ERROR((size("n", {.min = 1, .max = 100, .multiple_of = 128})),
                 "size 'n': no multiple of 128 lies in 1..100; give .max");
}

TEST_F(ExprTest, SizesAreTightened) {
    Expr n = size("n", {.min = 1, .max = 1000, .multiple_of = 128});
    EXPECT_EQ(n.as<Variable>()->min, 128);
    EXPECT_EQ(n.as<Variable>()->max, 896);
}

TEST_F(ExprTest, Walking) {
    Expr expr = select(i < j, a * 2, a);
    EXPECT_EQ(children(expr).size(), 3u);
    EXPECT_TRUE(with_children(expr, children(expr)).same(expr));
    EXPECT_EQ(to_string(with_children(expr, {p, a, d.same(d) ? a : a})), "select(p, a, a)");
    EXPECT_EQ(to_string(substitute(expr, {{i, j + 1}, {a, a + a}})), "select(j + 1 < j, (a + a) * 2.0, a + a)");
    EXPECT_TRUE(substitute(expr, {{w, w + 1}}).same(expr));
    EXPECT_TRUE(equal(i * 8 + j, i * 8 + j));
    EXPECT_FALSE(equal(i * 8 + j, j + i * 8));
    EXPECT_FALSE(equal(constant(f32, 0.0), constant(f32, -0.0)));
    EXPECT_TRUE(contains(expr, i < j));
    EXPECT_FALSE(contains(expr, w));
    int nodes = 0;
    Expr shared = a + a;
    visit(shared * shared, [&](const Expr&) { ++nodes; });
    EXPECT_EQ(nodes, 3);
    EXPECT_EQ(as_constant(Expr(5)), 5);
    EXPECT_EQ(as_constant(i), std::nullopt);
    EXPECT_EQ(to_string(all_of({})), "true");
    EXPECT_EQ(to_string(all_of({p, i < j})), "p && i < j");
    EXPECT_THROW(require_constant(i), InternalError);
    EXPECT_THROW(binary(BinaryOp::Add, a, d), InternalError);
}

TEST_F(ExprTest, TransformSeesSharedNodesOnce) {
    Expr deep = a;
    for (int step = 0; step < 60; ++step) deep = deep + deep;
    int calls = 0;
    transform(deep, [&](const Expr&) -> Expr {
        ++calls;
        return {};
    });
    EXPECT_EQ(calls, 61);
}

}  // namespace
}  // namespace tw

#include "dsl/signs.h"

#include <cmath>
#include <optional>

#include "dsl/simplify.h"

namespace tw {
namespace {

std::optional<double> real_constant(const Expr& expr) {
    if (auto real = expr.as<FloatConstant>()) return real->value;
    if (auto whole = expr.as<IntConstant>()) return static_cast<double>(whole->value);
    return {};
}

/// Above 0, and 0 of -infinity.
bool tends_to_zero(UnaryOp op) { return op == UnaryOp::Exp || op == UnaryOp::Exp2 || op == UnaryOp::Sigmoid; }

}  // namespace

bool is_infinite(const Expr& expr) {
    auto value = real_constant(expr);
    return value && std::isinf(*value);
}

bool is_positive(const Expr& expr) {
    if (auto value = real_constant(expr)) return *value > 0;
    if (auto one = expr.as<Unary>()) {
        const bool roots = one->op == UnaryOp::Sqrt || one->op == UnaryOp::Rsqrt;
        return tends_to_zero(one->op) || (roots && is_positive(one->a));
    }
    if (auto two = expr.as<Binary>())
        return (two->op == BinaryOp::Mul || two->op == BinaryOp::Div) && is_positive(two->a) && is_positive(two->b);
    if (auto converted = expr.as<Cast>()) return is_positive(converted->a);
    return false;
}

bool is_infinity(const Expr& expr, int sign) {
    if (auto value = real_constant(expr)) return std::isinf(*value) && *value * sign > 0;
    auto of_product = [&](const Expr& a, const Expr& b) {
        return (is_infinity(a, sign) && is_positive(b)) || (is_positive(a) && is_infinity(b, sign));
    };
    if (auto one = expr.as<Unary>()) return one->op == UnaryOp::Negate && is_infinity(one->a, -sign);
    if (auto two = expr.as<Binary>()) {
        const bool either = is_infinity(two->a, sign) || is_infinity(two->b, sign);
        const bool all = is_infinity(two->a, sign) && is_infinity(two->b, sign);
        switch (two->op) {
            case BinaryOp::Add: return either;
            case BinaryOp::Sub: return is_infinity(two->a, sign) || is_infinity(two->b, -sign);
            case BinaryOp::Mul: return of_product(two->a, two->b);
            case BinaryOp::Min: return sign < 0 ? either : all;
            case BinaryOp::Max: return sign < 0 ? all : either;
            default: return false;
        }
    }
    if (auto node = expr.as<Fma>()) return of_product(node->a, node->b) || is_infinity(node->c, sign);
    if (auto node = expr.as<Select>()) return is_infinity(node->yes, sign) && is_infinity(node->no, sign);
    if (auto node = expr.as<Cast>()) return is_infinity(node->a, sign);
    return false;
}

bool vanishes(const Expr& expr) {
    if (is_zero(expr)) return true;
    if (auto one = expr.as<Unary>()) {
        if (tends_to_zero(one->op)) return is_infinity(one->a, -1);
        const bool odd = one->op == UnaryOp::Negate || one->op == UnaryOp::Abs || one->op == UnaryOp::Sqrt;
        return odd && vanishes(one->a);
    }
    if (auto two = expr.as<Binary>()) {
        if (two->op == BinaryOp::Mul) return vanishes(two->a) || vanishes(two->b);
        if (two->op == BinaryOp::Div) return vanishes(two->a);
        const bool joins = two->op == BinaryOp::Add || two->op == BinaryOp::Sub;
        return joins && vanishes(two->a) && vanishes(two->b);
    }
    if (auto node = expr.as<Fma>()) return (vanishes(node->a) || vanishes(node->b)) && vanishes(node->c);
    if (auto node = expr.as<Select>()) return vanishes(node->yes) && vanishes(node->no);
    if (auto node = expr.as<Cast>()) return vanishes(node->a);
    return false;
}

bool leaves_as_it_is(const Expr& update, const Expr& accumulator) {
    if (equal(update, accumulator)) return true;
    if (auto node = update.as<Fma>())
        return equal(node->c, accumulator) && (vanishes(simplify(node->a)) || vanishes(simplify(node->b)));
    auto node = update.as<Binary>();
    if (!node || (!equal(node->a, accumulator) && !equal(node->b, accumulator))) return false;
    const Expr term = simplify(equal(node->a, accumulator) ? node->b : node->a);
    switch (node->op) {
        case BinaryOp::Add: return vanishes(term);
        case BinaryOp::Max: return is_infinity(term, -1);
        case BinaryOp::Min: return is_infinity(term, 1);
        default: return false;
    }
}

}  // namespace tw

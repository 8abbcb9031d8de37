// Operations on constants, where the result is exact or correctly rounded on every machine.
#include <algorithm>
#include <cmath>

#include "dsl/simplifier.h"

namespace tw {
namespace {

bool is_literal(const Expr& expr) { return expr.as<IntConstant>() || expr.as<FloatConstant>(); }
double real_of(const Expr& expr) { return expr.as<FloatConstant>()->value; }
int64_t integer_of(const Expr& expr) { return expr.as<IntConstant>()->value; }

Expr fold_unary(UnaryOp op, const Expr& a, Type type) {
    if (op == UnaryOp::Not) return Expr(integer_of(a) == 0);
    if (!is_float(type)) {
        int64_t value = integer_of(a);
        bool negates = op == UnaryOp::Negate || (op == UnaryOp::Abs && value < 0);
        return constant(type, negates ? checked_mul(value, -1) : value);
    }
    switch (op) {
        case UnaryOp::Negate: return constant(type, -real_of(a));
        case UnaryOp::Abs: return constant(type, std::fabs(real_of(a)));
        case UnaryOp::Floor: return constant(type, std::floor(real_of(a)));
        case UnaryOp::Ceil: return constant(type, std::ceil(real_of(a)));
        case UnaryOp::Round: return constant(type, std::nearbyint(real_of(a)));
        case UnaryOp::TruncateTf32: return constant(type, truncate_tf32(static_cast<float>(real_of(a))));
        case UnaryOp::Sqrt: return constant(type, std::sqrt(real_of(a)));
        default: return {};  // exp and its kin are approximations: left to the machine
    }
}

/// In f64, then rounded: for f32 that is the correctly rounded result, as 53 >= 2 * 24 + 2.
Expr fold_reals(BinaryOp op, double a, double b, Type type) {
    switch (op) {
        case BinaryOp::Add: return constant(type, a + b);
        case BinaryOp::Sub: return constant(type, a - b);
        case BinaryOp::Mul: return constant(type, a * b);
        case BinaryOp::Div: return constant(type, a / b);
        case BinaryOp::Min: return a == b ? Expr() : constant(type, std::fmin(a, b));  // the sign of zeros is open
        case BinaryOp::Max: return a == b ? Expr() : constant(type, std::fmax(a, b));
        case BinaryOp::Less: return Expr(a < b);
        case BinaryOp::LessEqual: return Expr(a <= b);
        case BinaryOp::Equal: return Expr(a == b);
        case BinaryOp::NotEqual: return Expr(a != b);
        default: return {};
    }
}

/// Sums that leave 64 bits are left as they are; products may wrap around, as those of random numbers do.
Expr fold_integers(BinaryOp op, int64_t a, int64_t b, Type type) {
    if (op == BinaryOp::Add) checked_add(a, b);
    if (op == BinaryOp::Sub) checked_add(a, checked_mul(b, -1));
    if (op == BinaryOp::Div && b == -1) checked_mul(a, b);
    auto value = apply_to_integers(op, a, b);
    return value ? constant(type, *value) : Expr();
}

Expr fold_fma(const Fma& node, Type type) {
    double a = real_of(node.a), b = real_of(node.b), c = real_of(node.c);
    if (type == Type::F64) return constant(type, std::fma(a, b, c));
    return constant(type, double{std::fmaf(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c))});
}

}  // namespace

Expr fold(const Expr& node) {
    Type type = node.type();
    if (auto* unary = node.as<Unary>(); unary && is_literal(unary->a)) return fold_unary(unary->op, unary->a, type);
    if (auto* binary = node.as<Binary>(); binary && is_literal(binary->a) && is_literal(binary->b)) {
        if (is_float(binary->a.type())) return fold_reals(binary->op, real_of(binary->a), real_of(binary->b), type);
        return fold_integers(binary->op, integer_of(binary->a), integer_of(binary->b), type);
    }
    if (auto* fma = node.as<Fma>();
        fma && is_float(type) && is_literal(fma->a) && is_literal(fma->b) && is_literal(fma->c))
        return fold_fma(*fma, type);
    if (auto* select = node.as<Select>())
        if (auto condition = as_constant(select->condition)) return *condition ? select->yes : select->no;
    if (auto* cast = node.as<Cast>(); cast && is_literal(cast->a)) {
        Type from = cast->a.type();
        return constant(convert(type, is_float(from) ? value_of(*cast->a.as<FloatConstant>(), from)
                                                     : value_of(*cast->a.as<IntConstant>(), from)));
    }
    return {};
}

}  // namespace tw

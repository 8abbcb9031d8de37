#include "dsl/constant_factors.h"

#include <cmath>
#include <limits>
#include <unordered_map>

#include "dsl/walk.h"

namespace tw {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

const double* finite_constant(const Expr& expr) {
    const FloatConstant* node = expr.as<FloatConstant>();
    return node && std::isfinite(node->value) ? &node->value : nullptr;
}

bool is_lowest(const Expr& expr) {
    const FloatConstant* node = expr.as<FloatConstant>();
    return node && node->value == -infinite;
}

const Binary* binary_of(const Expr& expr, BinaryOp op) {
    const Binary* node = expr.as<Binary>();
    return node && node->op == op ? node : nullptr;
}

/// Larger summands would cost the values that they stand behind their last digits: (1 - x) * 1e9 is exact at x = 1, and
/// 1e9 - x * 1e9 is not where more is added to the product first. Other factors would leave the range of f32.
constexpr double largest_summand = 64, largest_factor = 0x1p32, smallest_factor = 0x1p-32;

bool is_moderate(double factor) { return std::abs(factor) >= smallest_factor && std::abs(factor) <= largest_factor; }

/// What expressions are, each looked at once.
class Taker {
public:
    /// The factor may be negative.
    ScaledExpr taken(const Expr& expr) {
        if (auto known = known_.find(expr.id()); known != known_.end()) return known->second;
        ScaledExpr result = of(expr);
        if (!is_moderate(result.factor) || !(std::abs(result.offset) <= largest_summand)) result = of_others(expr);
        return known_[expr.id()] = result;
    }

    ScaledExpr taken_above_zero(const Expr& expr) {
        const ScaledExpr all = taken(expr);
        if (all.factor == 1) return factor_of_sum(all);
        if (all.factor > 0) return all;
        // Of a negative one, only the offset can stand behind.
        return {ScaledExpr{all.rest, all.factor}.value(), 1, all.offset};
    }

private:
    ScaledExpr of(const Expr& expr) {
        if (expr.type() != Type::F32 && expr.type() != Type::F64) return {expr};
        if (const Binary* node = expr.as<Binary>()) return of_binary(expr, *node);
        if (const Select* node = expr.as<Select>()) return of_select(expr, *node);
        const Unary* node = expr.as<Unary>();
        return node && node->op == UnaryOp::Negate ? of_sum(node->a, -1, 0) : of_others(expr);
    }

    /// A tensor's element is what it is.
    ScaledExpr of_others(const Expr& expr) {
        if (!expr.as<Binary>() && !expr.as<Unary>() && !expr.as<Select>()) return {expr};
        std::vector<Expr> kids = children(expr);
        for (Expr& kid : kids) kid = taken(kid).value();
        return {with_children(expr, kids)};
    }

    ScaledExpr of_product(const Expr& operand, double factor) {
        ScaledExpr inner = taken(operand);
        inner.factor *= factor, inner.offset *= factor;
        return inner;
    }

    ScaledExpr of_sum(const Expr& operand, double sign, double offset) {
        ScaledExpr inner = taken(operand);
        inner.factor *= sign;
        inner.offset = inner.offset * sign + offset;
        return inner;
    }

    ScaledExpr of_factors(const Expr& expr, const Binary& node) {
        ScaledExpr a = taken(node.a), b = taken(node.b);
        for (ScaledExpr* each : {&a, &b})
            if (each->offset != 0) *each = {each->value()};
        return {with_children(expr, {a.rest, b.rest}), a.factor * b.factor};
    }

    /// x * c + u * v is (x + (u / c) * v) * c, where u may be the same for many elements.
    static ScaledExpr factor_of_sum(const ScaledExpr& sum) {
        const Binary* node = binary_of(sum.rest, BinaryOp::Add);
        const Binary* left = node ? binary_of(node->a, BinaryOp::Mul) : nullptr;
        const Binary* right = node ? binary_of(node->b, BinaryOp::Mul) : nullptr;
        if (!left || !right) return sum;
        const double *of_left = finite_constant(left->b), *of_right = finite_constant(right->b);
        if (of_right && !of_left) std::swap(left, right), std::swap(of_left, of_right);
        if (!of_left || of_right || *of_left <= 0 || !is_moderate(*of_left)) return sum;
        const Expr scaled = right->a * constant(right->a.type(), 1 / *of_left);
        return {left->a + scaled * right->b, *of_left, sum.offset};
    }

    ScaledExpr of_summands(const Expr& expr, const Binary& node) {
        ScaledExpr a = taken(node.a), b = taken(node.b);
        const double offset = node.op == BinaryOp::Add ? a.offset + b.offset : a.offset - b.offset;
        a.offset = b.offset = 0;
        return {with_children(expr, {a.value(), b.value()}), 1, offset};
    }

    ScaledExpr of_binary(const Expr& expr, const Binary& node) {
        const double *left = finite_constant(node.a), *right = finite_constant(node.b);
        if (left && right) return of_others(expr);
        if (!left && !right && node.op == BinaryOp::Mul) return of_factors(expr, node);
        if (!left && !right)
            return node.op == BinaryOp::Add || node.op == BinaryOp::Sub ? of_summands(expr, node) : of_others(expr);
        switch (node.op) {
            case BinaryOp::Mul: return right ? of_product(node.a, *right) : of_product(node.b, *left);
            case BinaryOp::Div: return right ? of_product(node.a, 1 / *right) : of_others(expr);
            case BinaryOp::Add: return right ? of_sum(node.a, 1, *right) : of_sum(node.b, 1, *left);
            case BinaryOp::Sub: return right ? of_sum(node.a, 1, -*right) : of_sum(node.b, -1, *left);
            default: return of_others(expr);
        }
    }

    ScaledExpr of_select(const Expr& expr, const Select& node) {
        if (is_lowest(node.yes) == is_lowest(node.no)) return of_others(expr);
        std::vector<Expr> kids = children(expr);
        Expr& chosen = kids[is_lowest(node.no) ? 1 : 2];
        ScaledExpr all = taken_above_zero(chosen);
        chosen = all.rest;
        all.rest = with_children(expr, kids);
        return all;
    }

    std::unordered_map<const ExprNode*, ScaledExpr> known_;
};

}  // namespace

Expr ScaledExpr::value() const {
    const Type type = rest.type();
    auto is = [&](double value) {
        return factor == value || (type == Type::F32 && static_cast<float>(factor) == value);
    };
    if (is(-1)) return offset == 0 ? -rest : constant(type, offset) - rest;
    const Expr scaled = is(1) ? rest : rest * constant(type, factor);
    return offset == 0 ? scaled : scaled + constant(type, offset);
}

ScaledExpr take_constants(const Expr& expr) { return Taker().taken_above_zero(expr); }

Expr join_constants(const Expr& expr) { return Taker().taken(expr).value(); }

}  // namespace tw

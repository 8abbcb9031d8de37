#include "dsl/scaled_product.h"

#include <vector>

namespace tw {
namespace {

bool holds_element(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& e) { found = found || e.as<Read>() || e.as<Reduce>(); });
    return found;
}

class Factors {
public:
    /// Whether all of it is a factor, a divisor or a sign.
    bool take(const Expr& expr) {
        if (!holds_element(expr)) {
            if (mentions_index(expr)) return false;
            return scale_by(BinaryOp::Mul, expr);
        }
        if (const Unary* node = expr.as<Unary>(); node && node->op == UnaryOp::Negate) {
            negative_ = !negative_;
            return take(node->a);
        }
        const Binary* node = expr.as<Binary>();
        if (node && node->op == BinaryOp::Mul) return take(node->a) && take(node->b);
        if (node && node->op == BinaryOp::Div && is_float(expr.type()) && !holds_element(node->b) &&
            !mentions_index(node->b))
            return take(node->a) && scale_by(BinaryOp::Div, node->b);
        elements_.push_back(expr);
        return true;
    }

    std::optional<ScaledProduct> result() const {
        if (elements_.size() != 2) return {};
        Expr scale = scale_;
        const Type type = elements_[0].type();
        if (negative_) scale = scale.defined() ? unary(UnaryOp::Negate, scale) : minus_one(type);
        return ScaledProduct{scale, elements_[0], elements_[1]};
    }

private:
    bool scale_by(BinaryOp op, const Expr& by) {
        if (!scale_.defined() && op == BinaryOp::Div) scale_ = is_float(by.type()) ? constant(by.type(), 1.0) : Expr();
        scale_ = scale_.defined() ? binary(op, scale_, by) : by;
        return true;
    }
    static Expr minus_one(Type type) { return is_float(type) ? constant(type, -1.0) : constant(type, int64_t{-1}); }

    bool negative_ = false;
    Expr scale_;
    std::vector<Expr> elements_;
};

}  // namespace

std::optional<ScaledProduct> scaled_product(const Expr& term) {
    Factors factors;
    if (!factors.take(term)) return {};
    return factors.result();
}

Expr term_added(const Expr& update, const Expr& accumulator) {
    if (const Fma* fma = update.as<Fma>(); fma && fma->c.same(accumulator))
        return binary(BinaryOp::Mul, fma->a, fma->b);
    const Binary* sum = update.as<Binary>();
    if (sum && sum->op == BinaryOp::Sub && sum->a.same(accumulator)) return unary(UnaryOp::Negate, sum->b);
    if (!sum || sum->op != BinaryOp::Add) return {};
    return sum->a.same(accumulator) ? sum->b : sum->b.same(accumulator) ? sum->a : Expr();
}

}  // namespace tw

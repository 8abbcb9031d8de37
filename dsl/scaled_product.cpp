#include "dsl/scaled_product.h"

#include <algorithm>
#include <utility>

namespace tw {
namespace {

bool holds_element(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& e) { found = found || e.as<Read>() || e.as<Load>() || e.as<Reduce>(); });
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

/// Whether all terms have it as a factor.
bool is_scale(const Expr& expr) { return !holds_element(expr) && !mentions_index(expr); }

/// Whether the scale has a sign in front, which it loses.
bool take_sign(Expr& scale, bool& negative) {
    if (!scale.defined()) return false;
    if (const Unary* node = scale.as<Unary>(); node && node->op == UnaryOp::Negate) {
        negative = !negative;
        scale = Expr(node->a);
        return true;
    }
    const FloatConstant* real = scale.as<FloatConstant>();
    if (real ? real->value != -1 : !is_constant(scale, -1)) return false;
    negative = !negative;
    scale = {};
    return true;
}

class Summands {
public:
    explicit Summands(const Expr& besides) : besides_(besides) {}

    /// Whether all summands are products, but for the one beside them.
    bool take(const Expr& expr, bool negative, const Expr& scale) {
        if (besides_.defined() && equal(expr, besides_)) return !negative && !scale.defined();
        if (const Unary* node = expr.as<Unary>(); node && node->op == UnaryOp::Negate)
            return take(node->a, !negative, scale);
        if (const Fma* node = expr.as<Fma>())
            return take(binary(BinaryOp::Mul, node->a, node->b), negative, scale) && take(node->c, negative, scale);
        if (const Binary* node = expr.as<Binary>()) {
            if (node->op == BinaryOp::Add) return take(node->a, negative, scale) && take(node->b, negative, scale);
            if (node->op == BinaryOp::Sub) return take(node->a, negative, scale) && take(node->b, !negative, scale);
            if (node->op == BinaryOp::Mul && is_scale(node->a)) return take(node->b, negative, times(scale, node->a));
            if (node->op == BinaryOp::Mul && is_scale(node->b)) return take(node->a, negative, times(scale, node->b));
        }
        return take_product(expr, negative, scale);
    }

    std::optional<SumOfProducts> result() {
        if (all_.products.empty()) return {};
        auto positive = std::ranges::find(all_.products, false, &SignedProduct::negative);
        if (positive == all_.products.end()) {
            const Type type = all_.products[0].a.type();
            all_.scale = all_.scale.defined() ? unary(UnaryOp::Negate, all_.scale)
                         : is_float(type)     ? constant(type, -1.0)
                                              : constant(type, int64_t{-1});
            for (SignedProduct& product : all_.products) product.negative = false;
        } else {
            std::rotate(all_.products.begin(), positive, positive + 1);
        }
        return std::move(all_);
    }

private:
    bool take_product(const Expr& expr, bool negative, Expr scale) {
        const auto product = scaled_product(expr);
        if (!product) return false;
        if (product->scale.defined()) scale = times(scale, product->scale);
        while (take_sign(scale, negative)) continue;
        const bool agrees = all_.products.empty() ||
                            (scale.defined() == all_.scale.defined() && (!scale.defined() || equal(scale, all_.scale)));
        all_.scale = scale;
        all_.products.push_back({product->a, product->b, negative});
        return agrees;
    }
    static Expr times(const Expr& scale, const Expr& by) {
        return scale.defined() ? binary(BinaryOp::Mul, scale, by) : by;
    }

    Expr besides_;
    SumOfProducts all_;
};

}  // namespace

std::optional<ScaledProduct> scaled_product(const Expr& term) {
    Factors factors;
    if (!factors.take(term)) return {};
    return factors.result();
}

Expr SumOfProducts::term() const {
    Expr sum;
    for (const SignedProduct& product : products) {
        const Expr each = binary(BinaryOp::Mul, product.a, product.b);
        sum = sum.defined() ? binary(product.negative ? BinaryOp::Sub : BinaryOp::Add, sum, each) : each;
    }
    return sum;
}

std::optional<SumOfProducts> sum_of_products(const Expr& term, const Expr& besides) {
    Summands summands(besides);
    if (!summands.take(term, false, {})) return {};
    return summands.result();
}

}  // namespace tw

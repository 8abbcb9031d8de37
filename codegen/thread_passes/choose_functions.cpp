// Functions of the GPU that do the same as others in fewer instructions, where something is known of their operand or
// of the kernel.
#include <numbers>
#include <optional>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/one_plus_erf.h"

namespace tw::codegen {
namespace {

bool is_number(const Expr& e, float number) {
    const FloatConstant* real = e.as<FloatConstant>();
    return real && static_cast<float>(real->value) == number;
}

/// a * b, of which one may be 1.
Expr product_of(const Expr& a, const Expr& b) {
    if (is_number(a, 1)) return b;
    return is_number(b, 1) ? a : make_expr(a.type(), Binary{BinaryOp::Mul, a, b});
}

/// The factor times the expression, of f32, if it is worked into constants that are there: 2 * (x * fma(y, 3, 1)) is
/// x * fma(y, 6, 2), to a rounding.
std::optional<Expr> with_factor(const Expr& e, double factor) {
    if (const FloatConstant* real = e.as<FloatConstant>()) return constant(e.type(), real->value * factor);
    if (const Unary* unary = e.as<Unary>(); unary && unary->op == UnaryOp::Negate)
        return with_factor(unary->a, -factor);
    if (const Fma* node = e.as<Fma>()) {
        auto added = with_factor(node->c, factor), multiplied = with_factor(node->b, factor);
        if (added && multiplied) return make_expr(e.type(), Fma{node->a, *multiplied, *added});
        return {};
    }
    const Binary* node = e.as<Binary>();
    if (!node) return {};
    auto left = with_factor(node->a, factor), right = with_factor(node->b, factor);
    if (node->op == BinaryOp::Mul && right) return product_of(node->a, *right);
    if (node->op == BinaryOp::Mul && left) return product_of(*left, node->b);
    if (node->op == BinaryOp::Add && left && right) return make_expr(e.type(), Binary{BinaryOp::Add, *left, *right});
    return {};
}

bool is_square(const Expr& e) {
    const Binary* product = e.as<Binary>();
    return product && product->op == BinaryOp::Mul && equal(product->a, product->b);
}

/// -(x * x), or x * x times a negative number.
bool is_negative_square(const Expr& e) {
    if (const Unary* negated = e.as<Unary>()) return negated->op == UnaryOp::Negate && is_square(negated->a);
    const Binary* product = e.as<Binary>();
    if (!product || product->op != BinaryOp::Mul) return false;
    auto is_negative = [](const Expr& side) {
        const FloatConstant* real = side.as<FloatConstant>();
        return real && real->value < 0;
    };
    return (is_square(product->a) && is_negative(product->b)) || (is_negative(product->a) && is_square(product->b));
}

/// 1 + erf(x).
Expr twice_normal_cdf(const Expr& x) {
    const auto scaled = with_factor(x, std::numbers::sqrt2);
    const Expr cdf = unary(UnaryOp::NormalCdf, scaled ? *scaled : x * std::numbers::sqrt2);
    return make_expr(x.type(), Binary{BinaryOp::Mul, constant(x.type(), 2), cdf});
}

/// A half of what has 2 * normal_cdf(x) among its factors.
std::optional<Expr> half_of_cdf(const Expr& e) {
    const Binary* node = e.as<Binary>();
    if (!node || node->op != BinaryOp::Mul) return {};
    const Unary* function = node->b.as<Unary>();
    if (function && function->op == UnaryOp::NormalCdf && is_number(node->a, 2)) return node->b;
    if (const auto half = half_of_cdf(node->a)) return product_of(*half, node->b);
    if (const auto half = half_of_cdf(node->b)) return product_of(node->a, *half);
    return {};
}

/// Of 2 * normal_cdf(x) times something in which the 2 is worked in.
std::optional<Expr> without_the_two(const Expr& e) {
    const Binary* node = e.as<Binary>();
    if (!node || node->op != BinaryOp::Mul) return {};
    auto shortened = [](const Expr& cdf, const Expr& other) -> std::optional<Expr> {
        const auto half = half_of_cdf(cdf);
        const auto twice = half ? with_factor(other, 2) : std::nullopt;
        return twice ? std::optional(product_of(*twice, *half)) : std::nullopt;
    };
    const auto first = shortened(node->a, node->b);
    return first ? first : shortened(node->b, node->a);
}

}  // namespace

ThreadKernel choose_functions(const ThreadKernel& kernel) {
    const bool few_warps =
        kernel.producer_threads > 0;  // on a multiprocessor: branches would keep elements from overlapping
    bool worked_in = false, unbranched = false, nonpositive = false, in_one = false;
    ThreadKernel result = kernel;
    result.body = map_all_expressions(kernel.body, [&](const Expr& root) {
        return transform(root, [&](const Expr& e) -> Expr {
            if (e.type() != Type::F32) return {};
            if (const auto x = argument_of_one_plus_erf(e)) {
                in_one = true;
                return twice_normal_cdf(*x);
            }
            if (const auto shorter = without_the_two(e)) return *shorter;
            const Unary* function = e.as<Unary>();
            if (!function) return {};
            if (function->op == UnaryOp::Sigmoid)
                if (auto exponent = with_factor(function->a, -std::numbers::log2e)) {
                    worked_in = true;
                    return unary(UnaryOp::Logistic2, *exponent);
                }
            if (function->op == UnaryOp::Exp && is_negative_square(function->a)) {
                nonpositive = true;
                return unary(UnaryOp::ExpNonpositive, function->a);
            }
            if (function->op != UnaryOp::Erf || !few_warps) return {};
            unbranched = true;
            return unary(UnaryOp::ErfUnbranched, function->a);
        });
    });
    if (worked_in) result.notes.push_back("sigmoid: as 1 / (1 + 2^x), whose factor is worked into constants of x");
    if (unbranched) result.notes.push_back("erf: without a branch, as few warps run on a multiprocessor");
    if (in_one) result.notes.push_back("erf: 1 + erf(x) as 2 normal_cdf(x sqrt(2)), in all kernels alike");
    if (nonpositive) result.notes.push_back("exp: of what is never positive, in half the instructions");
    return result;
}

}  // namespace tw::codegen

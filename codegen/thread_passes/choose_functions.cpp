// Functions of the GPU that do the same as others in fewer instructions, where something is known of their operand or
// of the kernel.
#include <numbers>
#include <optional>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {
namespace {

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
    if (node->op == BinaryOp::Mul && right) return make_expr(e.type(), Binary{BinaryOp::Mul, node->a, *right});
    if (node->op == BinaryOp::Mul && left) return make_expr(e.type(), Binary{BinaryOp::Mul, *left, node->b});
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

/// x, of 1 + erf(x).
std::optional<Expr> erf_plus_one(const Expr& e) {
    const Binary* sum = e.as<Binary>();
    if (!sum || sum->op != BinaryOp::Add) return {};
    auto erf_of = [](const Expr& side) {
        const Unary* function = side.as<Unary>();
        return function && (function->op == UnaryOp::Erf || function->op == UnaryOp::ErfUnbranched) ? function
                                                                                                    : nullptr;
    };
    auto is_one = [](const Expr& side) {
        const FloatConstant* real = side.as<FloatConstant>();
        return real && real->value == 1;
    };
    if (const Unary* erf = erf_of(sum->a); erf && is_one(sum->b)) return erf->a;
    if (const Unary* erf = erf_of(sum->b); erf && is_one(sum->a)) return erf->a;
    return {};
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
            if (const auto x = erf_plus_one(e)) {
                in_one = true;
                return unary(UnaryOp::OnePlusErf, *x);
            }
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
    if (in_one) result.notes.push_back("erf: 1 + erf(x) as one function, in all kernels alike");
    if (nonpositive) result.notes.push_back("exp: of what is never positive, in half the instructions");
    return result;
}

}  // namespace tw::codegen

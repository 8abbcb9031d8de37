#include "dsl/one_plus_erf.h"

namespace tw {

std::optional<Expr> argument_of_one_plus_erf(const Expr& e) {
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

}  // namespace tw

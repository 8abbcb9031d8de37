#include "codegen/cost/operation_costs.h"

#include "dsl/one_plus_erf.h"

namespace tw::codegen {

double operations_of(UnaryOp op) {
    switch (op) {
        case UnaryOp::Exp:
        case UnaryOp::Log: return 3;
        case UnaryOp::ExpNonpositive: return 7;
        case UnaryOp::Sqrt:
        case UnaryOp::Rsqrt: return 5;
        case UnaryOp::Tanh: return 12;
        case UnaryOp::Erf:
        case UnaryOp::ErfUnbranched: return 20;
        case UnaryOp::NormalCdf: return 13;
        case UnaryOp::Sigmoid: return 6;
        case UnaryOp::Logistic2: return 5;
        default: return 1;
    }
}

double operations_of_function(const Expr& node) {
    if (const auto* function = node.as<Unary>()) return operations_of(function->op);
    if (argument_of_one_plus_erf(node)) return operations_of(UnaryOp::NormalCdf) - operations_of(UnaryOp::Erf);
    return 0;
}

double specials_of(UnaryOp op) {
    switch (op) {
        case UnaryOp::Exp:
        case UnaryOp::ExpNonpositive:
        case UnaryOp::Exp2:
        case UnaryOp::Log:
        case UnaryOp::Log2:
        case UnaryOp::TanhApprox:
        case UnaryOp::Sqrt:
        case UnaryOp::Rsqrt:
        case UnaryOp::Erf:
        case UnaryOp::ErfUnbranched: return 1;
        case UnaryOp::Tanh:
        case UnaryOp::NormalCdf:
        case UnaryOp::Sigmoid:
        case UnaryOp::Logistic2: return 2;
        default: return 0;
    }
}

}  // namespace tw::codegen

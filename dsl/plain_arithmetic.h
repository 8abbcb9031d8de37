// Operations on floats as the language has them, in f64: what interpreters of declarations round to their types.
#pragma once
#include <cmath>

#include "dsl/expr.h"
#include "support/error.h"

namespace tw {

/// One operation in float64. Rsqrt is two that are each rounded elsewhere; here it is one.
inline double apply_plainly(UnaryOp op, double a) {
    switch (op) {
        case UnaryOp::Negate: return -a;
        case UnaryOp::Abs: return std::fabs(a);
        case UnaryOp::Floor: return std::floor(a);
        case UnaryOp::Ceil: return std::ceil(a);
        case UnaryOp::Round: return std::nearbyint(a);
        case UnaryOp::TruncateTf32: return truncate_tf32(static_cast<float>(a));
        case UnaryOp::Sqrt: return std::sqrt(a);
        case UnaryOp::Rsqrt: return 1 / std::sqrt(a);
        case UnaryOp::Exp: return std::exp(a);
        case UnaryOp::Exp2: return std::exp2(a);
        case UnaryOp::Log: return std::log(a);
        case UnaryOp::Log2: return std::log2(a);
        case UnaryOp::Tanh:
        case UnaryOp::TanhApprox: return std::tanh(a);
        case UnaryOp::Erf: return std::erf(a);
        case UnaryOp::Sigmoid: return 1 / (1 + std::exp(-a));
        case UnaryOp::ErfUnbranched: return std::erf(a);
        case UnaryOp::Logistic2: return 1 / (1 + std::exp2(a));
        case UnaryOp::Not: break;
    }
    internal_check(false, "no float operation {}", static_cast<int>(op));
    return 0;
}

inline double apply_plainly(BinaryOp op, double a, double b) {
    switch (op) {
        case BinaryOp::Add: return a + b;
        case BinaryOp::Sub: return a - b;
        case BinaryOp::Mul: return a * b;
        case BinaryOp::Div: return a / b;
        case BinaryOp::Min: return a == b && std::signbit(a) ? a : std::fmin(a, b);  // -0 is below 0
        case BinaryOp::Max: return a == b && std::signbit(a) ? b : std::fmax(a, b);
        default: break;
    }
    internal_check(false, "no float operation {}", static_cast<int>(op));
    return 0;
}

}  // namespace tw

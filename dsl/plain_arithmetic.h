// Operations on numbers as the language has them, on floats in f64, on integers in 64 bits: what interpreters of
// declarations round and wrap to their types.
#pragma once
#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "dsl/expr.h"
#include "support/error.h"

namespace tw {

inline bool is_comparison(BinaryOp op) { return op >= BinaryOp::Less && op <= BinaryOp::NotEqual; }
inline bool is_lazy(BinaryOp op) { return op == BinaryOp::And || op == BinaryOp::Or; }
inline bool divides(BinaryOp op) { return op == BinaryOp::Div || op == BinaryOp::Mod; }

/// That a number drawn from the normal distribution of variance 1 is less than x.
inline double normal_cdf(double x) { return 0.5 * std::erfc(x * -std::numbers::sqrt2 / 2); }

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
        case UnaryOp::ExpNonpositive: return std::exp(a);
        case UnaryOp::NormalCdf: return normal_cdf(a);
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

/// In 64 bits, which wrap. Quotients are rounded toward minus infinity; the divisor is not 0.
inline int64_t apply_plainly(BinaryOp op, int64_t a, int64_t b) {
    auto wrapped = [](uint64_t value) { return static_cast<int64_t>(value); };
    if (divides(op) && b == -1) return op == BinaryOp::Div ? wrapped(0 - static_cast<uint64_t>(a)) : 0;
    switch (op) {
        case BinaryOp::Add: return wrapped(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
        case BinaryOp::Sub: return wrapped(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
        case BinaryOp::Mul: return wrapped(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
        case BinaryOp::Div: return a / b - (a % b != 0 && (a < 0) != (b < 0));
        case BinaryOp::Mod: return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
        case BinaryOp::Min: return std::min(a, b);
        case BinaryOp::Max: return std::max(a, b);
        case BinaryOp::BitAnd: return a & b;
        case BinaryOp::BitOr: return a | b;
        case BinaryOp::BitXor: return a ^ b;
        case BinaryOp::ShiftLeft: return b < 32 ? wrapped(static_cast<uint64_t>(a) << b) : 0;
        case BinaryOp::ShiftRight: return b < 32 ? a >> b : 0;
        case BinaryOp::MulHigh: return wrapped(static_cast<uint64_t>(a) * static_cast<uint64_t>(b) >> 32);
        default: break;
    }
    internal_check(false, "no integer operation {}", static_cast<int>(op));
    return 0;
}

/// run(op) with `op` a constant of its own type, for loops that do not ask at each lane which operation it is.
template <BinaryOp... ops, class Run>
void run_as(BinaryOp op, Run&& run) {
    bool found = ((op == ops && (run(std::integral_constant<BinaryOp, ops>{}), true)) || ...);
    internal_check(found, "no operation {} here", static_cast<int>(op));
}
template <class Run>
void run_on_reals(BinaryOp op, Run&& run) {
    using enum BinaryOp;
    run_as<Add, Sub, Mul, Div, Min, Max>(op, run);
}
template <class Run>
void run_on_integers(BinaryOp op, Run&& run) {
    using enum BinaryOp;
    run_as<Add, Sub, Mul, Div, Mod, Min, Max, BitAnd, BitOr, BitXor, ShiftLeft, ShiftRight, MulHigh>(op, run);
}
template <class Number>
bool compare(BinaryOp op, Number a, Number b) {
    switch (op) {
        case BinaryOp::Less: return a < b;
        case BinaryOp::LessEqual: return a <= b;
        case BinaryOp::Equal: return a == b;
        default: return a != b;
    }
}

}  // namespace tw

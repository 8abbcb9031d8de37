// Arithmetic on tensors, element by element, with NumPy's broadcasting; other types.
//
//   nn::Tensor y = (x - nn::mean(x, {-1}, /*keep=*/true)) * gain + 0.5;   // x [batch, width], gain [width]
#pragma once
#include <optional>
#include <source_location>
#include <type_traits>

#include "ops/operator.h"

namespace tw::nn {

// Of two tensors of one type: dimensions are matched from the last one on, and what is 1 or missing is repeated, [64,
// 1, 3] and [5, 3] -> [64, 5, 3]. Gradients are summed over what was repeated. Storage types (f16, bf16) are computed
// in f32, and rounded once. Throw Error with both types, or both shapes and the dimension that does not fit.
Tensor add(const Tensor& x, const Tensor& y, TW_HERE);
Tensor subtract(const Tensor& x, const Tensor& y, TW_HERE);
Tensor multiply(const Tensor& x, const Tensor& y, TW_HERE);
/// Of floats.
Tensor divide(const Tensor& x, const Tensor& y, TW_HERE);
// The larger or smaller one; the number where the other is NaN. Where both are equal each has half of the gradient.
Tensor maximum(const Tensor& x, const Tensor& y, TW_HERE);
Tensor minimum(const Tensor& x, const Tensor& y, TW_HERE);

// Of floats of any shape.
Tensor exp(const Tensor& x, TW_HERE);
/// The natural logarithm.
Tensor log(const Tensor& x, TW_HERE);
Tensor sqrt(const Tensor& x, TW_HERE);
Tensor abs(const Tensor& x, TW_HERE);
/// 1 / sqrt(x).
Tensor rsqrt(const Tensor& x, TW_HERE);
/// 1 / x.
Tensor reciprocal(const Tensor& x, TW_HERE);
Tensor erf(const Tensor& x, TW_HERE);
// To whole numbers; round() to the even one of two that are as near. The gradient is 0.
Tensor floor(const Tensor& x, TW_HERE);
Tensor ceil(const Tensor& x, TW_HERE);
Tensor round(const Tensor& x, TW_HERE);
// Of angles in radians. The error is a rounding of the type, and |x| 2^-52 where that is more. NaN of infinities.
Tensor sin(const Tensor& x, TW_HERE);
Tensor cos(const Tensor& x, TW_HERE);

// Of numbers.
/// -1, 0 or 1; of NaN 0. The gradient is 0.
Tensor sign(const Tensor& x, TW_HERE);
Tensor negate(const Tensor& x, TW_HERE);
/// low where x is less, high where it is more; NaN where x is. Infinite ends leave a side open. The gradient goes to
/// what lies between, ends included. Throws Error unless low <= high, and if integers do not hold one of them.
Tensor clamp(const Tensor& x, double low, double high, TW_HERE);

/// x to the power of a number. By products if that is whole and at most 64, so that x may be negative; else
/// exp2(exponent * log2(x)), which is NaN below 0, and has no slope at 0. To the power of 0 it is 1, and requires no
/// gradient.
Tensor pow(const Tensor& x, double exponent, TW_HERE);

/// Each element in another type, rounded to nearest if that is a float. The gradient is cast back; of whole numbers
/// there is none.
Tensor cast(const Tensor& x, Type type, TW_HERE);

/// An operand of the operators below and the line where it stands: a tensor, or a number, which takes the type of the
/// other operand, of integers a whole one that they hold. Each number has kernels of its own: one that changes from
/// call to call is better a scalar tensor.
struct Term {
    Term(const Tensor& tensor, TW_HERE) : tensor(tensor), where(where) {}
    template <class T>
    requires std::is_arithmetic_v<T> Term(T number, TW_HERE) : number(static_cast<double>(number)), where(where) {}
    Tensor tensor;
    std::optional<double> number;
    std::source_location where;
};
Tensor operator+(const Term& x, const Term& y);
Tensor operator-(const Term& x, const Term& y);
Tensor operator*(const Term& x, const Term& y);
Tensor operator/(const Term& x, const Term& y);
Tensor operator-(const Term& x);

}  // namespace tw::nn

// Conditions, tensors of booleans: comparisons that make them, what is chosen by them.
//
//   nn::Tensor y = nn::where(x < 0, 0.1 * x, x);
#pragma once
#include <vector>

#include "ops/elementwise.h"

namespace tw::nn {

// Of two tensors of one type, or a tensor and a number, broadcast as in add(): boolean, which requires no gradient.
// Comparisons with NaN do not hold, but for not_equal(). Throw Error as add() does.
Tensor less(const Term& x, const Term& y);
Tensor less_equal(const Term& x, const Term& y);
Tensor greater(const Term& x, const Term& y);
Tensor greater_equal(const Term& x, const Term& y);
Tensor equal(const Term& x, const Term& y);
Tensor not_equal(const Term& x, const Term& y);
Tensor operator<(const Term& x, const Term& y);
Tensor operator<=(const Term& x, const Term& y);
Tensor operator>(const Term& x, const Term& y);
Tensor operator>=(const Term& x, const Term& y);
Tensor operator==(const Term& x, const Term& y);
Tensor operator!=(const Term& x, const Term& y);

// Of booleans; both operands are computed. Throw Error of other types.
Tensor logical_and(const Tensor& x, const Tensor& y, TW_HERE);
Tensor logical_or(const Tensor& x, const Tensor& y, TW_HERE);
Tensor logical_not(const Tensor& x, TW_HERE);
Tensor operator&&(const Term& x, const Term& y);
Tensor operator||(const Term& x, const Term& y);
Tensor operator!(const Term& x);

// Of floats: boolean.
Tensor is_finite(const Tensor& x, TW_HERE);
Tensor is_nan(const Tensor& x, TW_HERE);

/// x where the condition, boolean, holds, else y; all three are broadcast. x and y are of one type; a number takes that
/// of the other one, f32 where both are numbers. The one that is not chosen has a gradient of 0, which an infinite
/// slope in front of it makes NaN: sqrt(where(x > 0, x, 1)), not where(x > 0, sqrt(x), 1). Throws Error with the types
/// or shapes that do not fit.
Tensor where(const Tensor& condition, const Term& x, const Term& y);

}  // namespace tw::nn

// Sums of differences from a mean, which are zero. Inside of dsl/.
#pragma once
#include "dsl/expr.h"

namespace tw {

/// A sum without the summands of its terms that add up to zero over its axes, up to rounding:
///
///     sum_n (f (x(n, c) - mean(c)) + t(n, c)) = sum_n t(n, c)      mean(c) = sum_n x(n, c) / N
///
/// for factors f that are the same for all terms. Summands are looked for in tensors that terms read, too, where these
/// reduce nothing; what is left of such a tensor stands in its place. Undefined if nothing is left, the expression
/// itself if nothing adds up to zero or it is no sum of floats.
Expr without_zero_sums(const Expr& sum);

}  // namespace tw

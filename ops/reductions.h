// Sums along dimensions and what is made of them: means, softmax, products of matrices.
#pragma once
#include <vector>

#include "ops/operator.h"

namespace tw::nn {

// Dimensions count from the end where negative. Elements of storage types (f16, bf16) are summed in f32, and the result
// is rounded once.

/// Of numbers, along these dimensions, all of them if none are named; these are left out of the result, or with `keep`
/// 1. Throws Error with the shape if there is no such dimension, or one is named twice.
Tensor sum(const Tensor& x, const std::vector<int>& dims = {}, bool keep = false, TW_HERE);
/// The sum over the number of terms, of floats.
Tensor mean(const Tensor& x, const std::vector<int>& dims = {}, bool keep = false, TW_HERE);

/// exp(x) over its sum along a dimension, of floats. The largest element is subtracted first.
Tensor softmax(const Tensor& x, int dim, TW_HERE);
/// Its logarithm, x - log(sum of exp(x)).
Tensor log_softmax(const Tensor& x, int dim, TW_HERE);

/// Products of matrices: x [..., m, k], y [..., k, n] -> [..., m, n], of one type; what stands in front is broadcast as
/// add() does. Throws Error with both shapes where they do not fit.
Tensor matmul(const Tensor& x, const Tensor& y, TW_HERE);

}  // namespace tw::nn

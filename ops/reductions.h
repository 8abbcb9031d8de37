// Reductions along dimensions and what is made of them: sums, extremes, moments, softmax, products of matrices.
#pragma once
#include <optional>
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

/// The largest or smallest element, of numbers; NaN counts only where all are, as -infinity or infinity. The gradient
/// is shared evenly between equal ones. Throw Error as sum(), and where there are no elements to choose from.
Tensor max(const Tensor& x, const std::vector<int>& dims = {}, bool keep = false, TW_HERE);
Tensor min(const Tensor& x, const std::vector<int>& dims = {}, bool keep = false, TW_HERE);
/// Where along a dimension, or, if none is named, in row-major order, the largest or smallest element stands, the first
/// of equal ones: i32, which requires no gradient. Throw Error as max().
Tensor argmax(const Tensor& x, std::optional<int> dim = {}, bool keep = false, TW_HERE);
Tensor argmin(const Tensor& x, std::optional<int> dim = {}, bool keep = false, TW_HERE);
/// Of booleans: whether one holds, or all do. Of none, false and true. Throw Error as sum(), and of other types.
Tensor any(const Tensor& x, const std::vector<int>& dims = {}, bool keep = false, TW_HERE);
Tensor all(const Tensor& x, const std::vector<int>& dims = {}, bool keep = false, TW_HERE);

// Of floats. Throw Error as sum().
/// The product, of numbers. Its gradient, of one of n terms, is the product of the others, right at zeros too: n^2
/// work.
Tensor prod(const Tensor& x, const std::vector<int>& dims = {}, bool keep = false, TW_HERE);
/// The logarithm of the sum of exp(x). The largest element is subtracted first.
Tensor logsumexp(const Tensor& x, const std::vector<int>& dims = {}, bool keep = false, TW_HERE);
/// The sum of squared differences from the mean over the number of terms less `correction`: 1 of a sample, 0 of all.
/// Throws Error too unless there are more terms than that.
Tensor var(const Tensor& x, const std::vector<int>& dims = {}, int correction = 1, bool keep = false, TW_HERE);
/// Its square root, whose gradient at 0 is 0.
Tensor std(const Tensor& x, const std::vector<int>& dims = {}, int correction = 1, bool keep = false, TW_HERE);
/// The square root of the sum of squares, which may overflow. The gradient at 0 is 0.
Tensor norm(const Tensor& x, const std::vector<int>& dims = {}, bool keep = false, TW_HERE);
/// Along a dimension, the sum of all elements up to each one, of numbers.
Tensor cumsum(const Tensor& x, int dim, TW_HERE);

/// exp(x) over its sum along a dimension, of floats. The largest element is subtracted first.
Tensor softmax(const Tensor& x, int dim, TW_HERE);
/// Its logarithm, x - log(sum of exp(x)).
Tensor log_softmax(const Tensor& x, int dim, TW_HERE);

/// Products of matrices: x [..., m, k], y [..., k, n] -> [..., m, n], of one type; what stands in front is broadcast as
/// add() does. Throws Error with both shapes where they do not fit.
Tensor matmul(const Tensor& x, const Tensor& y, TW_HERE);

}  // namespace tw::nn

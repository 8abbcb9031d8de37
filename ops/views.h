// Functional calls that move elements alone. In a step as one graph (step/compile_step.h) their results need no memory:
// whoever reads them reads what they are views of. Called by themselves they are tensors in the memory of x, which they
// keep alive, where their elements lie there side by side, in the order of rows, from a multiple of 16 bytes on: no
// kernel runs, and what overwrites x later is seen (Tensor::shares_memory()). All others are copies.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/operator.h"

namespace tw::nn {

/// The elements of x in the order of rows, in another shape of as many. One extent may be -1: what is left for it.
/// Throws Error with both where the numbers of elements differ.
Tensor reshape(const Tensor& x, const std::vector<int64_t>& shape, TW_HERE);
/// x from `begin` on, up to but without `end`, along dimension `dim`; negative numbers count from the end. Throws Error
/// with the shape where that is empty or leaves x.
Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end, TW_HERE);
/// Dimension d of the result is dimension order[d] of x. Throws Error unless `order` names each dimension once.
Tensor permute(const Tensor& x, const std::vector<int>& order, TW_HERE);

// Dimensions count from the end where negative; what does not exist is refused with the shape.

/// Every `step`-th element of that slice, from its first one on. Throws Error as slice(), and if the step is not
/// positive.
Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end, int64_t step, TW_HERE);
/// The elements at one place of a dimension, which the result does not have; negative places count from the end. Throws
/// Error where there is no such place.
Tensor select(const Tensor& x, int dim, int64_t index, TW_HERE);
/// The elements in the opposite order along these dimensions. Throws Error if one is named twice.
Tensor flip(const Tensor& x, const std::vector<int>& dims, TW_HERE);
/// Dimensions a and b exchanged.
Tensor transpose(const Tensor& x, int a, int b, TW_HERE);
/// x in a shape of which its own is a part: extents of 1, and dimensions that it lacks in front, are repeated. The
/// gradient is summed over these. An extent of -1 is that of x. Throws Error with both where they do not fit.
Tensor broadcast_to(const Tensor& x, const std::vector<int64_t>& shape, TW_HERE);
/// Without a dimension, whose extent is 1. Throws Error if it is not.
Tensor squeeze(const Tensor& x, int dim, TW_HERE);
/// With a dimension of extent 1, `dim` of the result.
Tensor unsqueeze(const Tensor& x, int dim, TW_HERE);

/// The elements of x in memory of their own, which nothing that overwrites x changes.
Tensor clone(const Tensor& x, TW_HERE);

}  // namespace tw::nn

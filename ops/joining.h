// Tensors put together and taken apart.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/operator.h"

namespace tw::nn {

// Dimensions count from the end where negative. Parts are of one type.

/// One behind the other along a dimension, in which alone they may differ. Throws Error with the shapes where they do
/// not fit, and without tensors.
Tensor concatenate(const std::vector<Tensor>& tensors, int dim, TW_HERE);
/// Tensors of one shape along a new dimension, `dim` of the result. Throws Error as concatenate().
Tensor stack(const std::vector<Tensor>& tensors, int dim, TW_HERE);
/// x cut along a dimension into slices of these extents. Throws Error unless they add up to the extent of x.
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim, TW_HERE);

}  // namespace tw::nn

// The tuner's search space for products on tensor cores.
#pragma once
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// Tilings that the target builds for the shape, 60 at most: those for which a model of an H200's time gives
/// least, best first; of the very best also other numbers of stages, ways out of the block and orders of blocks. Tiles
/// of warpgroups where takes_warpgroups; tiles of warps where not, and beside them where one side is short.
std::vector<ProductTiling> tensor_product_space(const TensorProductShape& shape, const Target& target);

/// So many tilings of all kinds, from those for which the models give least to those that they give four times as much:
/// what models are compared with and fitted to.
std::vector<ProductTiling> spread_tensor_product_space(const TensorProductShape& shape, const Target& target,
                                                       size_t count);

/// Bytes of shared memory that a block needs, at least all that it takes: at most a few KiB more.
int64_t shared_bytes_of(const ProductTiling& tiling, const TensorProductShape& shape);

}  // namespace tw::schedules

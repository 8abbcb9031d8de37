// Tiles of warps that a product may have: the rule takes one of these, and the tuner measures the best of them.
#pragma once
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// All sizes of blocks and warps, parts of k and ways out of the block that the target builds for the shape, with as
/// many stages as fit where one to four blocks share a multiprocessor.
std::vector<TensorTiles> warp_space(const TensorProductShape& shape, const Target& target);

/// The model's clock cycles of the whole product, with copies of operands if the shape has them.
double predicted_cycles(const TensorTiles& tiles, const TensorProductShape& shape, const Target& target);

}  // namespace tw::schedules

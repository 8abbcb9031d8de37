// Tiles of warps that a product may have: the rule takes one of these, and the tuner measures the best of them.
#pragma once
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// Whether blocks may have several matrices of a batch: each fits into a warp's tile or a few, is a product for itself,
/// and leaves as it is summed. Not where operands are copied element by element, which is what takes the time then: for
/// 65536 products of 27 x 27 x 27 the model of lowered kernels expects 0.125 ms of one a block, and of several no less.
bool has_small_matrices(const TensorProductShape& shape);

/// All sizes of blocks and warps, parts of k and ways out of the block that the target builds for the shape, with as
/// many stages as fit where one to four blocks share a multiprocessor.
std::vector<TensorTiles> warp_space(const TensorProductShape& shape, const Target& target);

/// The model's clock cycles of the whole product, with copies of operands if the shape has them.
double predicted_cycles(const TensorTiles& tiles, const TensorProductShape& shape, const Target& target);

}  // namespace tw::schedules

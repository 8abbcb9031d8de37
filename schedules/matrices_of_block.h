// A batch of products by tiles of warps: small matrices, of which a block has several.
#pragma once
#include <array>
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// The loops over the matrices of a batch, the outermost first. Where a block has several of them, its warps share
/// these, and one that has several sums them side by side.
struct BatchLoops {
    std::vector<Loop> blocks, warps = {}, own = {};
};

/// Splits the last of the loops over a batch. Refuses several matrices a block where there is no batch, or where `p.c`
/// computes with sums in registers.
BatchLoops split_batch(Schedule& s, const TensorProduct& p, std::vector<Loop> batch, const TensorTiles& tiles,
                       std::source_location where);

/// Binds loops over a batch, and over groups of rows of tiles, columns, and rows, in this order, to the grid.
void bind_blocks(Schedule& s, const BatchLoops& batch, const std::array<Loop, 3>& tiles);

}  // namespace tw::schedules

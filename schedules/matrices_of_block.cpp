#include "schedules/matrices_of_block.h"

#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::schedules {

BatchLoops split_batch(Schedule& s, const TensorProduct& p, std::vector<Loop> batch, const TensorTiles& tiles,
                       std::source_location where) {
    if (tiles.block_b == 1) return {batch};
    user_check(!batch.empty() && !p.product.defined(), where,
               "{} matrices a block (block_b) are neighbours of a batch, and leave as they are summed; '{}' {}: use "
               "block_b = 1",
               tiles.block_b, p.c.name(), batch.empty() ? "has no batch" : "computes with sums in registers");
    auto [block, inside] = s.split(batch.back(), tiles.block_b, Tail::Mask, {"block_b", "tile_b"});
    auto [of_warps, own] = s.split(inside, tiles.warp_b, {"warp_b", "own_b"});
    batch.back() = block;
    return {batch, {of_warps}, {own}};
}

void bind_blocks(Schedule& s, const BatchLoops& batch, const std::array<Loop, 3>& tiles) {
    std::vector<Loop> outer = batch.blocks;
    outer.push_back(tiles[0]);
    int64_t count = 1;
    for (Loop loop : outer) count *= as_constant(s.extent(loop)).value_or(1);
    // More than one dimension of the grid holds are numbered by the first one alone, which holds all: the order is the
    // same.
    const bool are_many = count > s.target().max_grid_yz;
    for (Loop loop : outer) s.bind(loop, are_many ? grid.x : grid.z);
    s.bind(tiles[1], are_many ? grid.x : grid.y);
    s.bind(tiles[2], grid.x);
}

}  // namespace tw::schedules

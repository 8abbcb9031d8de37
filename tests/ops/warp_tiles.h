// Products in tiles of warps, whose loops are ready for mma.
#pragma once
#include <utility>
#include <vector>

#include "dsl/schedule.h"

namespace tw {

/// Tiles of a product c[..., i, j] over the reduce loop, for warps of warp_m x warp_n elements.
struct WarpTiles {
    int64_t block_m = 64, block_n = 64, block_k = 32, warp_m = 32, warp_n = 32;
    int stages = 3;
};

/// Returns the loop over the tiles of k, and the instruction's loops.
inline std::pair<Loop, MmaLoops> tile_for_warps(Schedule& s, const Tensor& c, const WarpTiles& t) {
    std::vector<Loop> data = s.data_loops(c), order(data.begin(), data.end() - 2);
    auto [bi, it] = s.split(data[data.size() - 2], t.block_m, Tail::Mask);
    auto [bj, jt] = s.split(data.back(), t.block_n, Tail::Mask);
    auto [wi, mi] = s.split(it, t.warp_m);
    auto [wj, nj] = s.split(jt, t.warp_n);
    auto [ko, ki] = s.split(s.reduce(c), t.block_k, Tail::Mask);
    for (Loop loop : {bi, bj, wi, wj, ko, mi, nj, ki}) order.push_back(loop);
    s.order(order);
    for (size_t d = 0; d + 2 < data.size(); ++d) s.bind(data[d], grid.z);
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(wi, warp);
    s.bind(wj, warp);
    return {ko, {mi, nj, ki}};
}

}  // namespace tw

// Tiles of warpgroups that a product may have: the rule takes one of these, and the tuner measures the best of them.
#pragma once
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// All sizes, groupings, parts of k and ways out of the block that the target builds for the shape, with as many stages
/// as fit.
std::vector<WarpgroupTiles> warpgroup_space(const TensorProductShape& shape, const Target& target);

/// Of how many blocks the emulator runs all threads at once (`FirstAgent` of them). Warps that load are a group of
/// four.
inline int most_blocks_of_cluster(const WarpgroupTiles& tiles) {
    constexpr int threads_of_group = 128, most_threads = 4032;
    return most_threads / (threads_of_group * (tiles.warpgroups * tiles.ping_pong + 1));
}

/// How the tiles of a grid are walked: groups of rows of blocks pass through all columns together, or groups of columns
/// through all rows where rows make no groups.
struct TileWalk {
    int64_t together;  ///< clusters of a group
    bool by_columns;
};
TileWalk walk_of(int64_t rows_of_clusters, int64_t columns_of_clusters, int64_t raster_group);

/// The columns of a block's result: pairs of gated columns make one.
int64_t result_columns(const WarpgroupTiles& tiles, const TensorProductShape& shape);

}  // namespace tw::schedules

// Tiles of warpgroups: which ways out of a block there are, what fits, and which tiles the model of time takes.
#include <algorithm>

#include "schedules/tensor_product.h"
#include "schedules/warpgroup_space.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t line_bytes = 128;

/// How many rows of clusters walk together where all blocks run at once: neighbours share the longer side of their
/// tiles. What multiprocessors near each other ask for at the same time, the second level of the cache is asked for
/// once.
int64_t rows_at_once(const WarpgroupTiles& t, const TensorProductShape& shape, const Target& target) {
    const int64_t height = t.block_m * t.cluster, width = t.block_n * t.cluster_columns;
    const int64_t rows = divided(shape.m, height), columns = divided(shape.n, width),
                  blocks =
                      rows * columns * t.cluster * t.cluster_columns * std::max<int64_t>(shape.batch, 1) * t.split_k;
    if (rows <= 1 || columns <= 1 || blocks > target.multiprocessors) return t.raster_group;
    return width > height ? rows : 1;
}

}  // namespace

std::vector<WarpgroupTiles> epilogues(const WarpgroupTiles& tiles, const TensorProductShape& shape) {
    WarpgroupTiles registers = tiles;
    registers.stage_result = registers.store_boxes = false;
    registers.epilogue_columns = 0;
    std::vector<WarpgroupTiles> ways{registers};
    if (tiles.split_k > 1) return ways;
    WarpgroupTiles staged = registers;
    staged.stage_result = true;
    int64_t columns = shape.activation == Activation::SwiGlu ? shape.n / 2 : shape.n;
    // Four lanes' pairs of sums of 4 bytes fill sectors from registers, too, where rows begin at these.
    constexpr int64_t sector_bytes = 32;
    if (bytes_of(shape.result) <= 2 || columns * bytes_of(shape.result) % sector_bytes != 0) ways.push_back(staged);
    if (tiles.swap || columns * bytes_of(shape.result) % piece_bytes != 0) return ways;
    staged.store_boxes = true;
    ways.push_back(staged);
    int64_t piece = line_bytes / bytes_of(shape.result), own = result_columns(tiles, shape);
    bool whole_tiles = tiles.block_m <= shape.m && tiles.block_n <= shape.n;
    if (!whole_tiles || own <= piece || own % piece != 0 || tiles.promotion_interval > 0 || shape.block_scales)
        return ways;
    staged.epilogue_columns = piece;
    ways.push_back(staged);
    return ways;
}

/// Rows of what threads copy on are 16 bytes longer, of 4-byte elements 32, against bank conflicts.
int64_t staged_result_bytes(const WarpgroupTiles& t, const TensorProductShape& shape) {
    int64_t bias = shape.add_bias && t.split_k == 1 ? t.block_n * bytes_of(shape.result) * t.ping_pong : 0;
    int64_t bytes = rounded_up(bias, 1024);
    if (!t.stage_result) return bytes;
    int64_t columns = t.epilogue_columns > 0 ? t.epilogue_columns : result_columns(t, shape);
    int64_t gap = t.store_boxes ? 0 : bytes_of(shape.result) == 4 ? 2 * piece_bytes : piece_bytes;
    int64_t row = columns * bytes_of(shape.result) + gap;
    return bytes + rounded_up(t.block_m * row, 1024) * t.ping_pong;
}

bool sums_fit(const WarpgroupTiles& t, const TensorProductShape& shape) {
    int64_t sums = t.block_m * t.block_n / (t.warpgroups * 128);
    if (t.promotion_interval > 0) return sums <= 64;                // and as many of parts
    if (shape.block_scales) return sums <= 64 && t.warpgroups < 3;  // and scales
    return sums <= (t.warpgroups >= 3 ? 96 : 192);
}

int64_t exact_terms(const TensorProductShape& shape) {
    constexpr int64_t most = 1024;
    bool loses_bits = (shape.operand == e4m3 || shape.operand == e5m2) && !shape.block_scales;
    return loses_bits && shape.k > most ? most : 0;
}

int64_t promotion_interval(const WarpgroupTiles& t, const TensorProductShape& shape) {
    const int64_t most = exact_terms(shape) / t.block_k, steps = divided(divided(shape.k, t.block_k), t.split_k);
    if (most == 0 || steps <= most) return 0;
    int64_t each = divided(most, 2);  // smaller parts cost little and lose less, but none is shorter than others
    auto steps_made = [&](int64_t of_part) { return divided(steps, of_part) * of_part; };
    for (int64_t longer = each + 1; longer <= most; ++longer)
        if (steps_made(longer) < steps_made(each)) each = longer;
    return each * t.block_k;
}

WarpgroupTiles warpgroup_tiles(const TensorProductShape& shape, const Target& target) {
    WarpgroupTiles best;
    double least = 0;
    auto take_if_faster = [&](const WarpgroupTiles& tiles) {
        const double cycles = predicted_cycles(tiles, shape, target);
        if (least != 0 && cycles >= least) return;
        least = cycles;
        best = tiles;
    };
    for (const WarpgroupTiles& tiles : warpgroup_space(shape, target)) take_if_faster(tiles);
    for (int64_t group : {16, 4}) {
        WarpgroupTiles other = best;
        other.raster_group = group;
        take_if_faster(other);
    }
    WarpgroupTiles shared = best;
    shared.raster_group = rows_at_once(best, shape, target);
    if (predicted_cycles(shared, shape, target) <= least) return shared;
    return best;
}

}  // namespace tw::schedules

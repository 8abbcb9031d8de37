#include <algorithm>

#include "schedules/tensor_product.h"

namespace tw::schedules {
namespace {

constexpr int64_t multiprocessors = 132;

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Tiles, and how much of a multiprocessor's rate of multiplications they reach; block_k in bytes.
struct RatedTiles {
    WarpgroupTiles tiles;
    double share;
};
const RatedTiles rated_tiles[] = {
    {{.block_m = 128, .block_n = 256, .block_k = 128, .warpgroups = 2, .stages = 3}, 0.90},
    {{.block_m = 128, .block_n = 192, .block_k = 128, .warpgroups = 2, .stages = 4}, 0.90},
    {{.block_m = 256, .block_n = 128, .block_k = 128, .warpgroups = 2, .stages = 3}, 0.85},
    {{.block_m = 128, .block_n = 128, .block_k = 128, .warpgroups = 2, .stages = 5}, 0.70},
    {{.block_m = 64, .block_n = 256, .block_k = 128, .warpgroups = 1, .stages = 4}, 0.80},
    {{.block_m = 64, .block_n = 128, .block_k = 128, .warpgroups = 1, .stages = 7}, 0.72},
    {{.block_m = 128, .block_n = 64, .block_k = 128, .warpgroups = 2, .stages = 7}, 0.60},
    {{.block_m = 64, .block_n = 64, .block_k = 256, .warpgroups = 1, .stages = 5}, 0.50},
    {{.block_m = 64, .block_n = 64, .block_k = 256, .warpgroups = 1, .stages = 5, .swap = true}, 0.50},
    {{.block_m = 32, .block_n = 64, .block_k = 256, .warpgroups = 1, .stages = 7, .swap = true}, 0.35},
    {{.block_m = 16, .block_n = 64, .block_k = 256, .warpgroups = 1, .stages = 8, .swap = true}, 0.20},
    {{.block_m = 8, .block_n = 64, .block_k = 256, .warpgroups = 1, .stages = 8, .swap = true}, 0.10},
};

/// Clock cycles. A multiprocessor multiplies 2048 pairs of 16 bits a cycle, starts a tile in some 1500 and stores a
/// result of 16 bits in a tenth of one; it reads 48 bytes a cycle, all of them together 2000. A second kernel reads
/// parts at 1700 bytes a cycle.
double predicted_cycles(const RatedTiles& rated, const TensorProductShape& shape, int64_t split) {
    const WarpgroupTiles& t = rated.tiles;
    int64_t k = divided(shape.k, split), batch = std::max<int64_t>(shape.batch, 1);
    int64_t blocks = divided(shape.m, t.block_m) * divided(shape.n, t.block_n) * batch * split;
    auto area = static_cast<double>(t.block_m * t.block_n);
    double bytes = static_cast<double>((t.block_m + t.block_n) * k * bytes_of(shape.operand));
    double multiply = area * static_cast<double>(k) * bytes_of(shape.operand) / 2 / (2048 * rated.share);
    double store = area * (split > 1 ? 4 : bytes_of(shape.result)) / 20;
    double tile = std::max(multiply, bytes / 48) + 1500 + store;
    double once = static_cast<double>((shape.m + shape.n) * shape.k * batch * bytes_of(shape.operand)) / 2000;
    double cycles = std::max(static_cast<double>(divided(blocks, multiprocessors)) * tile, once);
    if (split == 1) return cycles;
    return cycles + 4000 + static_cast<double>(shape.m * shape.n * split * 8) / 1700;
}

}  // namespace

WarpgroupTiles warpgroup_tiles(const TensorProductShape& shape) {
    WarpgroupTiles best;
    double least = 0;
    for (const RatedTiles& rated : rated_tiles)
        for (int64_t split : {1, 2, 3, 4, 6, 8}) {
            if (split > 1 && shape.k / split < 512) continue;
            double cycles = predicted_cycles(rated, shape, split);
            if (least != 0 && cycles >= least) continue;
            least = cycles;
            best = rated.tiles;
            best.split_k = split;
        }
    // Sums of 4 bytes fill sectors of memory from registers too, and would not fit beside the operands.
    best.stage_result = best.split_k == 1 && bytes_of(shape.result) <= 2;
    best.block_k /= bytes_of(shape.operand);
    return best;
}

}  // namespace tw::schedules

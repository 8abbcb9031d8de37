#include <algorithm>

#include "schedules/tensor_product.h"
#include "schedules/tensor_product_space.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

/// Tiles, and how much of a multiprocessor's rate of multiplications they reach.
struct RatedTiles {
    TensorTiles tiles;  // block_k in bytes
    double share;
};
const RatedTiles rated_tiles[] = {
    {{.block_m = 128, .block_n = 256, .block_k = 64, .warp_m = 64, .warp_n = 64, .stages = 4}, 1.0},
    {{.block_m = 128, .block_n = 128, .block_k = 64, .warp_m = 64, .warp_n = 64, .stages = 3}, 0.9},
    {{.block_m = 64, .block_n = 128, .block_k = 64, .warp_m = 32, .warp_n = 64, .stages = 5}, 0.75},
    {{.block_m = 64, .block_n = 64, .block_k = 128, .warp_m = 32, .warp_n = 32, .stages = 4}, 0.6},
    {{.block_m = 32, .block_n = 64, .block_k = 128, .warp_m = 16, .warp_n = 32, .stages = 5}, 0.4},
    {{.block_m = 16, .block_n = 64, .block_k = 128, .warp_m = 16, .warp_n = 16, .stages = 6}, 0.25},
};

/// Clock cycles. A multiprocessor multiplies about 1200 pairs of 16 bits a cycle, starts and ends a tile in a few
/// thousand, and a second kernel reads parts at 3 TB/s, 1700 bytes a cycle.
double predicted_cycles(const RatedTiles& rated, const TensorProductShape& shape, int64_t split, const Target& target) {
    const TensorTiles& t = rated.tiles;
    int64_t blocks =
        divided(shape.m, t.block_m) * divided(shape.n, t.block_n) * std::max<int64_t>(shape.batch, 1) * split;
    double rate = 1200 * rated.share * 2 / bytes_of(shape.operand);
    double tile = static_cast<double>(t.block_m * t.block_n * divided(shape.k, split)) / rate + 1500;
    double cycles = static_cast<double>(divided(blocks, std::max(target.multiprocessors, 1))) * tile;
    if (split == 1) return cycles;
    return cycles + 4000 + static_cast<double>(shape.m * shape.n * split * 8) / 1700;
}

/// Where fp8 is left to the units of f16, operands are converted in registers.
bool needs_more_registers(Type operand) { return operand == e4m3 || operand == e5m2; }

/// A block that has a multiprocessor to itself has its shared memory, too.
void run_far_ahead(TensorTiles& t, const TensorProductShape& shape, const Target& target) {
    constexpr int most_stages = 8;
    const int64_t blocks = divided(shape.m, t.block_m) * divided(shape.n, t.block_n) *
                           std::max<int64_t>(shape.batch, 1) * t.split_k,
                  steps = divided(divided(shape.k, t.split_k), t.block_k);
    if (blocks > target.multiprocessors) return;
    for (TensorTiles more = t; more.stages < std::min<int64_t>(most_stages, steps); t = more)
        if (++more.stages; shared_bytes_of(more, shape) > target.shared_bytes) break;
}

}  // namespace

TensorTiles tensor_tiles(const TensorProductShape& shape, const Target& target) {
    TensorTiles best;
    double least = 0;
    for (const RatedTiles& rated : rated_tiles)
        for (int64_t split : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}) {
            if (needs_more_registers(shape.operand) && rated.tiles.warp_m * rated.tiles.warp_n >= 64 * 64) continue;
            if (split > 1 && (shape.k / split < 512 || !may_split_k(shape))) continue;
            double cycles = predicted_cycles(rated, shape, split, target);
            if (least != 0 && cycles >= least) continue;
            least = cycles;
            best = rated.tiles;
            best.split_k = split;
        }
    // Each warp makes some of the product that the result takes from registers.
    if (shape.activation == Activation::SwiGlu) {
        best.block_m = std::min(best.block_m, rounded_up(shape.m, best.warp_m));
        best.block_n = std::min(best.block_n, rounded_up(shape.n, best.warp_n));
    }
    // Sums of 4 bytes fill sectors of memory from registers too, and large tiles of them leave no room for operands.
    best.stage_result = best.split_k == 1 && bytes_of(shape.result) <= 2;
    best.block_k /= bytes_of(shape.operand);
    while (best.block_k * bytes_of(shape.operand) > 32 && best.block_k / 2 >= shape.k) best.block_k /= 2;
    run_far_ahead(best, shape, target);
    return best;
}

}  // namespace tw::schedules

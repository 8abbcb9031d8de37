// Tiles of warps: those that the model of time takes.
#include "schedules/tensor_product.h"
#include "schedules/warp_space.h"

namespace tw::schedules {

TensorTiles tensor_tiles(const TensorProductShape& shape, const Target& target) {
    TensorTiles best;
    double least = 0;
    for (const TensorTiles& tiles : warp_space(shape, target)) {
        const double cycles = predicted_cycles(tiles, shape, target);
        if (least != 0 && cycles >= least) continue;
        least = cycles;
        best = tiles;
    }
    return best;
}

}  // namespace tw::schedules

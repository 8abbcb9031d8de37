// What the models of time choose: tiles of warps, the tiling of a product, and whether it reads copies of its operands.
#include <algorithm>

#include "schedules/product_cycles.h"
#include "schedules/tensor_product.h"
#include "schedules/thin_product.h"
#include "schedules/tuned_records.h"
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

namespace {

/// Of few terms, all that is left is to store: small tiles, of which a multiprocessor has many, begin and end side by
/// side. In the spaces of five products of 1 to 11 terms on an H200, four took 1.13 to 1.6 times as long by the tiles
/// that are best for more; these were 0 to 7 % behind the best.
bool sums_few_terms(const TensorProductShape& shape) {
    constexpr int64_t most_terms = 16, least_rows = 32, least_columns = 128, together = 8;
    const int64_t columns = shape.activation == Activation::SwiGlu ? shape.n / 2 : shape.n;
    return shape.k <= most_terms && shape.m >= least_rows && columns >= least_columns && bytes_of(shape.operand) == 2 &&
           columns * bytes_of(shape.result) % together == 0;
}
TensorTiles tiles_of_few_terms(const TensorProductShape& shape) {
    return {.block_m = 32,
            .block_n = 128,
            .block_k = 16,
            .warp_m = 32,
            .warp_n = 32,
            .stages = 2,
            .stage_result = bytes_of(shape.result) <= 2};
}

struct ChosenTiling {
    ProductTiling tiling;
    double cycles;  ///< with copies of operands
};

ChosenTiling by_warps(const TensorTiles& tiles, const TensorProductShape& shape, const Target& target) {
    return {tiles, predicted_cycles(tiles, shape, target)};
}

ChosenTiling by_warpgroups(const TensorProductShape& shape, const Target& target) {
    const TensorProductShape read = with_read_transposes(shape);
    const WarpgroupTiles tiles = warpgroup_tiles(read, target);
    return {tiles, predicted_cycles(tiles, read, target) + copy_cycles(shape)};
}

/// The best of many tiles of warps is one of those that the model likes too well.
double likely_cycles(const ChosenTiling& choice, double liked) {
    return std::holds_alternative<TensorTiles>(choice.tiling) ? liked * choice.cycles : choice.cycles;
}

/// A warpgroup takes small matrices one after another, which hardly fill its tile, where warps take several together.
ChosenTiling by_units(const TensorProductShape& shape, const Target& target, double liked) {
    if (!takes_warpgroups(shape, target)) return by_warps(tensor_tiles(shape, target), shape, target);
    const ChosenTiling groups = by_warpgroups(shape, target);
    if (!has_small_matrices(shape)) return groups;
    const TensorTiles tiles = tensor_tiles(shape, target);
    const ChosenTiling warps = by_warps(tiles, shape, target);
    return tiles.block_b > 1 && likely_cycles(warps, liked) < groups.cycles ? warps : groups;
}

ChosenTiling choice_of(const TensorProductShape& shape, const Target& target) {
    constexpr double liked = 1.2;
    if (sums_few_terms(shape)) return by_warps(tiles_of_few_terms(shape), shape, target);
    const ChosenTiling others = by_units(shape, target, liked);
    if (!is_thin(shape)) return others;
    const ThinTiles thin = thin_tiles(shape, target);
    const double cycles = predicted_cycles(thin, shape, target);
    return cycles < likely_cycles(others, liked) ? ChosenTiling{thin, cycles} : others;
}

}  // namespace

ProductTiling best_tiling(const TensorProductShape& shape, const Target& target) {
    if (auto tuned = tuned_tiling(shape, target)) return *tuned;
    return choice_of(shape, target).tiling;
}

bool wants_copied_operands(const TensorProductShape& shape) {
    TensorProductShape plain = shape, copied = shape;
    plain.copy_operands = false;
    copied.copy_operands = true;
    if (shape.m == 0 || shape.n == 0 || shape.k == 0 || copy_cycles(copied) == 0) return false;
    // Measured: bytes that lie across, and rows of an odd number of 4-byte results, take longer than the model says.
    const double liked = shape.operand == i8 ? 2.2 : bytes_of(shape.result) == 4 ? 1.32 : 1.1;
    constexpr int64_t few = 4;  // vectors
    const Target hopper = target("sm_90a");
    const ChosenTiling where_they_lie = choice_of(plain, hopper);
    const int64_t vectors = std::min(shape.m, shape.n);
    const double copies_of_vectors =
        copied_cycles(as_double(std::max<int64_t>(shape.batch, 1) * vectors * shape.k * bytes_of(shape.operand)));
    // Threads convert fp8, which tensor cores read: worth copies of the vectors alone.
    const bool turns_vectors = shape.operand == e4m3 && copy_cycles(copied) <= copies_of_vectors;
    if (std::holds_alternative<ThinTiles>(where_they_lie.tiling) && vectors <= few && !turns_vectors) return false;
    constexpr double launches = 5000;  // of copies: those of shorter products take as long as these
    if (where_they_lie.cycles < launches) return false;
    return likely_cycles(choice_of(copied, hopper), liked) < likely_cycles(where_they_lie, liked);
}

}  // namespace tw::schedules

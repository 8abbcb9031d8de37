#include "schedules/tensor_product_space.h"

#include "schedules/thin_product.h"
#include "schedules/warp_space.h"
#include "schedules/warpgroup_space.h"
#include "schedules/whole_tiles.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace tw::schedules {
namespace {

constexpr size_t most_tiles = 36;        // of different sizes, parts, clusters or ways out
constexpr int most_of_one_size = 5;      // and as many parts
constexpr size_t most_tiles_beside = 6;  // of warps, where warpgroups are most of the space
constexpr size_t most_together = 60;     // with those of threads
constexpr size_t varied_tiles = 6;       // whose stages and way out vary, too
constexpr size_t reordered_tiles = 3;    // whose order of blocks varies, too
constexpr int64_t line_bytes = 1024;     // what tiles in shared memory are aligned to
constexpr int64_t short_side = 64;       // rows or columns up to which memory is what bounds the product

struct Rated {
    ProductTiling tiling;
    double cycles;
};

void keep_best(std::vector<Rated>& rated, size_t count) {
    auto by_cycles = [](const Rated& x, const Rated& y) { return x.cycles < y.cycles; };
    std::stable_sort(rated.begin(), rated.end(), by_cycles);
    if (rated.size() > count) rated.resize(count);
}

// What tiles of either kind need.

int64_t staged_bytes(const WarpgroupTiles& t, const TensorProductShape& shape) {
    int64_t row_bytes = t.block_k * bytes_of(shape.operand);
    return rounded_up(t.block_m * row_bytes, line_bytes) + rounded_up(t.block_n * row_bytes, line_bytes);
}

/// Each row may end in 16 bytes that nobody reads, of 4-byte elements 32, against bank conflicts; rows run along k or
/// across it.
int64_t staged_bytes(const TensorTiles& t, const TensorProductShape& shape) {
    int64_t elements = (t.block_m + t.block_n) * t.block_k, bytes = bytes_of(shape.operand), gap = bytes == 4 ? 32 : 16;
    return t.block_b * (elements * bytes + gap * (std::max(t.block_m, t.block_k) + std::max(t.block_n, t.block_k)));
}

/// Rows of a staged result are 8 elements longer, against bank conflicts.
int64_t staged_result_bytes(const TensorTiles& t, const TensorProductShape& shape) {
    if (!t.stage_result) return 0;
    return rounded_up(t.block_b * t.block_m * (t.block_n + 8) * bytes_of(shape.result), line_bytes);
}

template <class Tiles>
int64_t all_shared_bytes(const Tiles& t, const TensorProductShape& shape) {
    constexpr int64_t barriers = 1024;
    return t.stages * staged_bytes(t, shape) + staged_result_bytes(t, shape) + barriers;
}

/// Parts of sums of each warp, and results on their way out.
int64_t all_shared_bytes(const ThinTiles& t, const TensorProductShape& shape) {
    constexpr int64_t warp = 32, bytes_of_sum = 4;
    const int64_t sums = t.results * std::min(shape.m, shape.n) * bytes_of_sum;
    return (t.threads_long * t.threads_terms + t.threads_long * warp) * sums;
}

/// The most stages that fit, no more than there are tiles of the sum; 0 if two do not fit.
template <class Tiles>
int fitting_stages(Tiles t, const TensorProductShape& shape, int64_t most_bytes) {
    constexpr int64_t most_stages = 8;
    t.stages = 0;
    int64_t room = most_bytes - all_shared_bytes(t, shape), tiles_of_k = divided(shape.k, t.block_k * t.split_k);
    int64_t stages = std::min({most_stages, room / staged_bytes(t, shape), std::max<int64_t>(2, tiles_of_k)});
    return stages < 2 ? 0 : static_cast<int>(stages);
}

// Tiles of warpgroups.

/// By cycles, of each size of blocks no more than those that are rated best.
void keep_some_of_each_size(std::vector<Rated>& rated) {
    keep_best(rated, rated.size());
    std::map<std::array<int64_t, 6>, int> kept;
    std::erase_if(rated, [&](const Rated& one) {
        const WarpgroupTiles& t = std::get<WarpgroupTiles>(one.tiling);
        return ++kept[{t.block_m, t.block_n, t.block_k, t.warpgroups, t.split_k, t.swap}] > most_of_one_size;
    });
}

std::vector<Rated> rated_warpgroup_tiles(const TensorProductShape& shape, const Target& target) {
    std::vector<Rated> rated;
    for (const WarpgroupTiles& t : warpgroup_space(shape, target))
        rated.push_back({t, predicted_cycles(t, shape, target)});
    return rated;
}

// Tiles of warps.

std::vector<Rated> rated_warp_tiles(const TensorProductShape& shape, const Target& target) {
    std::vector<Rated> rated;
    for (const TensorTiles& t : warp_space(shape, target)) rated.push_back({t, predicted_cycles(t, shape, target)});
    return rated;
}

/// The same of warps, which have other stages and ways out.
void keep_some_of_each_block(std::vector<Rated>& rated) {
    constexpr int most_of_one_block = 2;
    keep_best(rated, rated.size());
    std::map<std::array<int64_t, 8>, int> kept;
    std::erase_if(rated, [&](const Rated& one) {
        const TensorTiles& t = std::get<TensorTiles>(one.tiling);
        return ++kept[{t.block_m, t.block_n, t.block_k, t.warp_m, t.warp_n, t.split_k, t.block_b, t.warp_b}] >
               most_of_one_block;
    });
}

// Tiles of threads.

/// What the rule chooses from, and its choice with half and twice as much of each.
std::vector<ProductTiling> thin_space(const TensorProductShape& shape, const Target& target) {
    if (!is_thin(shape)) return {};
    constexpr int64_t most_threads = 512, most_of_thread = 64;
    const ThinTiles best = thin_tiles(shape, target);
    std::vector<ProductTiling> space{best};
    for (const ThinTiles& other : thin_choices(shape, target))
        if (other != best) space.push_back(other);
    for (int64_t ThinTiles::*part : {&ThinTiles::threads_long, &ThinTiles::threads_terms, &ThinTiles::results,
                                     &ThinTiles::terms, &ThinTiles::split_k})
        for (bool more : {false, true}) {
            ThinTiles t = best;
            t.*part = more ? t.*part * 2 : t.*part / 2;
            const int64_t threads = t.threads_long * t.threads_terms,
                          of_thread = std::max(t.results, t.terms) * std::min(shape.m, shape.n);
            const bool has_parts = t.split_k == 1 || t.threads_terms * t.terms * t.split_k < 2 * shape.k;
            if (t.*part > 0 && threads <= most_threads && threads >= 32 && of_thread <= most_of_thread && has_parts &&
                all_shared_bytes(t, shape) <= target.shared_bytes)
                space.push_back(t);
        }
    return space;
}

/// Of those that are rated at most so many times the best, as many from every part of the order.
std::vector<ProductTiling> spread_over(std::vector<Rated> rated, size_t count) {
    constexpr double most_times_best = 4;
    keep_best(rated, rated.size());
    std::erase_if(rated, [&](const Rated& one) { return one.cycles > most_times_best * rated.front().cycles; });
    std::vector<ProductTiling> result;
    count = std::min(count, rated.size());
    for (size_t k = 0; k < count; ++k) result.push_back(rated[k * rated.size() / count].tiling);
    return result;
}

// The space.

template <class... Functions>
struct Each : Functions... {
    using Functions::operator()...;
};

std::vector<TensorTiles> epilogues(TensorTiles t, const TensorProductShape&) {
    t.stage_result = !t.stage_result && t.split_k == 1;
    return {t};
}

/// One stage less, and the other ways out of the block.
template <class Tiles>
std::vector<ProductTiling> variants(const Tiles& t, const TensorProductShape& shape, const Target& target) {
    std::vector<ProductTiling> result;
    Tiles fewer = t;
    if (--fewer.stages >= 3) result.push_back(fewer);
    for (Tiles other : epilogues(t, shape)) {
        other.stages = fitting_stages(other, shape, target.shared_bytes);
        if (other.stages >= 2) result.push_back(other);
    }
    return result;
}

/// More and fewer rows of blocks that walk together.
template <class Tiles>
std::vector<ProductTiling> orders(const Tiles& t, const TensorProductShape& shape) {
    std::vector<ProductTiling> result;
    for (int64_t rows : {t.raster_group / 2, t.raster_group * 2})
        if (divided(shape.m, t.block_m) > rows) {
            Tiles other = t;
            other.raster_group = rows;
            result.push_back(other);
        }
    return result;
}

std::vector<ProductTiling> with_variants(const std::vector<Rated>& rated, const TensorProductShape& shape,
                                         const Target& target) {
    std::vector<ProductTiling> space;
    auto add = [&](const std::vector<ProductTiling>& others) {
        for (const ProductTiling& other : others)
            if (std::find(space.begin(), space.end(), other) == space.end()) space.push_back(other);
    };
    for (size_t place = 0; place < rated.size(); ++place) {
        add({rated[place].tiling});
        auto of = [&](const auto& t) {
            if (place < varied_tiles) add(variants(t, shape, target));
            if (place < reordered_tiles) add(orders(t, shape));
        };
        std::visit(Each{of, [](const ThinTiles&) {}}, rated[place].tiling);
    }
    return space;
}

}  // namespace

int64_t shared_bytes_of(const ProductTiling& tiling, const TensorProductShape& shape) {
    return std::visit([&](const auto& tiles) { return all_shared_bytes(tiles, shape); }, tiling);
}

std::vector<ProductTiling> tensor_product_space(const TensorProductShape& shape, const Target& target) {
    if (shape.m == 0 || shape.n == 0 || shape.k == 0) return {tensor_tiles(shape, target)};
    std::vector<Rated> warps = rated_warp_tiles(shape, target), rated;
    keep_some_of_each_block(warps);
    if (takes_warpgroups(shape, target)) {
        rated = rated_warpgroup_tiles(with_read_transposes(shape), target);
        keep_some_of_each_size(rated);
        keep_best(rated, most_tiles);
        keep_best(warps, std::min(shape.m, shape.n) <= short_side ? most_tiles_beside : 0);
        rated.insert(rated.end(), warps.begin(), warps.end());
    } else {
        rated = warps;
    }
    keep_best(rated, most_tiles + most_tiles_beside);
    std::vector<ProductTiling> space = thin_space(shape, target);
    for (const ProductTiling& tiling : with_variants(rated, shape, target))
        if (space.size() < most_together) space.push_back(tiling);
    return space;
}

std::vector<ProductTiling> spread_tensor_product_space(const TensorProductShape& shape, const Target& target,
                                                       size_t count) {
    std::vector<ProductTiling> space = thin_space(shape, target);
    auto add = [&](const std::vector<Rated>& rated, size_t most) {
        for (const ProductTiling& tiling : spread_over(rated, most)) space.push_back(tiling);
    };
    if (shape.m == 0 || shape.n == 0 || shape.k == 0) return space;
    const bool by_warpgroups = takes_warpgroups(shape, target);
    if (by_warpgroups) add(rated_warpgroup_tiles(with_read_transposes(shape), target), count * 3 / 4);
    add(rated_warp_tiles(shape, target), by_warpgroups ? count / 4 : count);
    return space;
}

}  // namespace tw::schedules

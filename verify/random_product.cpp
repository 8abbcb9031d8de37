#include "verify/random_product.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "schedules/tensor_product_names.h"
#include "schedules/tensor_product_space.h"
#include "schedules/warpgroup_space.h"

namespace tw::fuzz {
namespace {

using schedules::ProductTiling;
using schedules::TensorProductShape;
using schedules::WarpgroupTiles;

/// Some small or odd, most of them multiples of 16.
int64_t random_extent(Random& random, double log_extent) {
    constexpr int64_t steps = 1024;
    const double least = random.chance(0.2) ? 0 : log_extent / 2;
    auto value = int64_t(std::exp2(least + (log_extent - least) * double(random.below(steps + 1)) / steps));
    return random.chance(0.2) ? value : (value + 15) / 16 * 16;
}

}  // namespace

TensorProductShape random_product(Random& random, double log_extent) {
    auto extent = [&] { return random_extent(random, log_extent); };
    TensorProductShape shape{.m = extent(), .n = extent(), .k = random_extent(random, log_extent + 1)};
    shape.operand = shape.result = random.pick<Type>({bf16, f16, i8, e4m3, tf32});
    if (shape.operand == tf32) shape.result = f32;
    if (bytes_of(shape.operand) == 1) shape.result = shape.operand == i8 ? i32 : bf16;
    if (is_float(shape.operand) && random.chance(0.25)) shape.result = f32;
    const bool as_stored = bytes_of(shape.operand) != 2 && random.chance(0.7);  // what wgmma takes
    shape.transpose_a = !as_stored && random.chance(0.5);
    shape.transpose_b = as_stored || random.chance(0.7);
    shape.batch = random.chance(0.25) ? 3 : 0;
    if (random.chance(0.1)) {  // small matrices, which share blocks
        constexpr int64_t largest = 64;
        shape.batch = random.between(4, 30);
        for (int64_t* of : {&shape.m, &shape.n, &shape.k}) *of = std::min(*of, largest);
    }
    shape.add_bias = is_float(shape.result) && random.chance(0.5);
    if (shape.batch == 0 && is_float(shape.operand) && random.chance(0.15)) {
        shape.row_terms = schedules::RowTerms::Lower;
        shape.k = (shape.k + schedules::rows_of_block - 1) / schedules::rows_of_block * schedules::rows_of_block;
    }
    return shape;
}

ProductTiling random_tiling(Random& random, const TensorProductShape& shape, const Target& target) {
    ProductTiling tiling = random.pick(schedules::tensor_product_space(shape, target));
    auto* tiles = std::get_if<WarpgroupTiles>(&tiling);
    if (!tiles || random.chance(0.5)) return tiling;
    tiles->cluster = static_cast<int>(random.between(1, 4));
    tiles->cluster_columns = static_cast<int>(random.between(1, 8 / tiles->cluster));
    if (tiles->warpgroups == 1 && !tiles->swap) tiles->ping_pong = static_cast<int>(random.between(1, 2));
    const int most_blocks = schedules::most_blocks_of_cluster(*tiles);
    tiles->cluster_columns = std::clamp(most_blocks / tiles->cluster, 1, tiles->cluster_columns);
    for (int halvings = static_cast<int>(random.between(0, 2)); halvings > 0; --halvings)
        if (tiles->block_k * bytes_of(shape.operand) > 32) tiles->block_k /= 2;  // rings turn more often
    const int64_t sums = tiles->block_m * tiles->block_n / (tiles->warpgroups * 128);
    const bool as_long = shape.row_terms == schedules::RowTerms::All;  // parts have a fixed number of terms
    if (bytes_of(shape.operand) == 1 && sums <= 64 && as_long && tiles->split_k == 1 && tiles->epilogue_columns == 0)
        tiles->promotion_interval = tiles->block_k * random.between(0, 3);
    if (tiles->stages > 3)
        tiles->stages = static_cast<int>(random.between(tiles->ping_pong > 1 ? 3 : 2, tiles->stages));
    return tiling;
}

std::string describe(const TensorProductShape& s, const ProductTiling& tiling) {
    return fmt::format("gemm_{} {} x {} x {} x {}{}{}{}{} to {}, {}", name_of(s.operand), s.batch, s.m, s.n, s.k,
                       s.transpose_a ? " ta" : "", s.transpose_b ? " tb" : "", s.add_bias ? " bias" : "",
                       s.row_terms == schedules::RowTerms::Lower ? " lower" : "", name_of(s.result),
                       schedules::tiling_text(tiling));
}

}  // namespace tw::fuzz

#include "schedules/tensor_product.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::schedules {

TensorProduct declare_tensor_product(const TensorProductShape& shape) {
    auto with_batch = [&](auto... extents) {
        Shape all;
        if (shape.batch) all.push_back(shape.batch);
        (all.push_back(extents), ...);
        return all;
    };
    TensorProduct p;
    p.a = input("a", shape.operand, shape.transpose_a ? with_batch(shape.k, shape.m) : with_batch(shape.m, shape.k));
    p.b = input("b", shape.operand, shape.transpose_b ? with_batch(shape.n, shape.k) : with_batch(shape.k, shape.n));
    if (shape.add_bias) p.bias = input("bias", shape.result, {shape.n});
    Axis k = reduce_axis("k", shape.k);
    Type sum_type = shape.operand == i8 ? i32 : f32;
    p.c = compute("c", with_batch(shape.m, shape.n), [&](const std::vector<Expr>& axes) {
        const Expr &i = axes[axes.size() - 2], &j = axes.back();
        auto element = [&](const Tensor& matrix, bool transposed, Expr row, Expr column) {
            std::vector<Operand> indices(axes.begin(), axes.end() - 2);
            if (transposed) std::swap(row, column);
            indices.insert(indices.end(), {row, column});
            return cast(sum_type, matrix.read(indices));
        };
        Expr value = sum(element(p.a, shape.transpose_a, i, k) * element(p.b, shape.transpose_b, k, j), k);
        if (shape.add_bias || shape.apply_gelu) value = cast(f32, value);
        if (shape.add_bias) value = value + cast(f32, p.bias(j));
        if (shape.apply_gelu) value = gelu(value);
        return cast(shape.result, value);
    });
    return p;
}

namespace {

constexpr int64_t multiprocessors = 132;

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Tiles, and how much of a multiprocessor's rate of multiplications they reach.
struct RatedTiles {
    TensorTiles tiles;  // block_k in bytes
    double share;
};
const RatedTiles rated_tiles[] = {
    {{.block_m = 128, .block_n = 256, .block_k = 64, .warp_m = 64, .warp_n = 64, .stages = 4}, 1.0},
    {{.block_m = 128, .block_n = 128, .block_k = 64, .warp_m = 64, .warp_n = 64, .stages = 4}, 0.9},
    {{.block_m = 64, .block_n = 128, .block_k = 64, .warp_m = 32, .warp_n = 64, .stages = 5}, 0.75},
    {{.block_m = 64, .block_n = 64, .block_k = 128, .warp_m = 32, .warp_n = 32, .stages = 4}, 0.6},
    {{.block_m = 32, .block_n = 64, .block_k = 128, .warp_m = 16, .warp_n = 32, .stages = 5}, 0.4},
    {{.block_m = 16, .block_n = 64, .block_k = 128, .warp_m = 16, .warp_n = 16, .stages = 6}, 0.25},
};

/// Clock cycles. A multiprocessor multiplies about 1200 pairs of 16 bits a cycle, starts and ends a tile in a few
/// thousand, and a second kernel reads parts at 3 TB/s, 1700 bytes a cycle.
double predicted_cycles(const RatedTiles& rated, const TensorProductShape& shape, int64_t split) {
    const TensorTiles& t = rated.tiles;
    int64_t blocks =
        divided(shape.m, t.block_m) * divided(shape.n, t.block_n) * std::max<int64_t>(shape.batch, 1) * split;
    double rate = 1200 * rated.share * 2 / bytes_of(shape.operand);
    double tile = static_cast<double>(t.block_m * t.block_n * divided(shape.k, split)) / rate + 1500;
    double cycles = static_cast<double>(divided(blocks, multiprocessors)) * tile;
    if (split == 1) return cycles;
    return cycles + 4000 + static_cast<double>(shape.m * shape.n * split * 8) / 1700;
}

}  // namespace

TensorTiles tensor_tiles(const TensorProductShape& shape) {
    TensorTiles best;
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
    best.block_k /= bytes_of(shape.operand);
    while (best.block_k * bytes_of(shape.operand) > 32 && best.block_k / 2 >= shape.k) best.block_k /= 2;
    return best;
}

namespace {

/// The stage of the parts; the sums of them, with what is made of these, are spread over threads.
Stage split_reduction(Schedule& s, const Tensor& c, const TensorTiles& tiles) {
    int64_t k = require_constant(s.extent(s.reduce(c)));
    int64_t length = divided(divided(k, tiles.block_k), tiles.split_k) * tiles.block_k;
    Stage parts = s.partial(c, s.split(s.reduce(c), length, Tail::Mask)[0]);
    auto [block, inside] = s.split(s.fuse(s.data_loops(c)), 128, Tail::Mask);
    s.bind(block, grid.x);
    s.bind(inside, thread);
    return parts;
}

/// The largest divisor of the number of rows of blocks within the limit; 1 where that is not constant.
int64_t group_of(const Expr& rows, int64_t limit) {
    auto count = as_constant(rows);
    if (!count || *count == 0) return 1;
    int64_t group = std::min(limit, *count);
    while (*count % group != 0) --group;
    return group;
}

}  // namespace

void schedule_tensor_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b, const TensorTiles& tiles) {
    Stage product = tiles.split_k > 1 ? split_reduction(s, c, tiles) : s[c];
    std::vector<Loop> data = s.data_loops(product), order(data.begin(), data.end() - 2);
    Loop i = data[data.size() - 2], j = data.back();
    auto [bi, it] = s.split(i, tiles.block_m, Tail::Mask);
    auto [bj, jt] = s.split(j, tiles.block_n, Tail::Mask);
    auto [wi, mi] = s.split(it, tiles.warp_m);
    auto [wj, nj] = s.split(jt, tiles.warp_n);
    auto [ko, ki] = s.split(s.reduce(product), tiles.block_k, Tail::Mask);
    auto [group, row] = s.split(bi, group_of(s.extent(bi), tiles.row_group));
    order.insert(order.end(), {group, bj, row, wi, wj, ko, mi, nj, ki});
    s.order(order);
    for (size_t batch = 0; batch + 2 < data.size(); ++batch) s.bind(data[batch], grid.z);
    s.bind(group, grid.z);
    s.bind(bj, grid.y);
    s.bind(row, grid.x);
    s.bind(wi, warp);
    s.bind(wj, warp);
    s.stage(product, a, Memory::Shared, ko);
    s.stage(product, b, Memory::Shared, ko);
    s.mma(product, mma_sync, {.m = mi, .n = nj, .k = ki});
    if (tiles.stages > 1) s.pipeline(ko, {.stages = tiles.stages});
}

}  // namespace tw::schedules

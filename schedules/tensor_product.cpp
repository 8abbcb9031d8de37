#include "schedules/tensor_product.h"

#include <algorithm>
#include <optional>

#include "dsl/simplify.h"
#include "schedules/tuned_records.h"

namespace tw::schedules {

namespace {

constexpr int64_t piece_bytes = 16;  // of the widest access

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The extents of the operands as they are stored: rows, then what lies side by side.
struct Stored {
    int64_t a[2], b[2];
};
Stored stored(const TensorProductShape& s) {
    Stored result{{s.m, s.k}, {s.k, s.n}};
    if (s.transpose_a) std::swap(result.a[0], result.a[1]);
    if (s.transpose_b) std::swap(result.b[0], result.b[1]);
    return result;
}

/// m, n and k as the product reads them: where they are the length of padded rows, whole pieces.
TensorProductShape padded_shape(TensorProductShape s) {
    if (!s.pad_rows) return s;
    int64_t piece = piece_bytes / bytes_of(s.operand);
    auto pad = [&](int64_t& extent) { extent = divided(extent, piece) * piece; };
    if (s.transpose_a) pad(s.m);
    if (!s.transpose_b) pad(s.n);
    if (!s.transpose_a || s.transpose_b) pad(s.k);
    return s;
}

/// Shape from the last two dimensions.
Shape with_batch(int64_t batch, const int64_t (&extents)[2]) {
    Shape shape(extents, extents + 2);
    if (batch) shape.insert(shape.begin(), batch);
    return shape;
}

Tensor padded_copy(const Tensor& matrix, const Shape& shape) {
    return compute(matrix.name() + "_padded", shape, [&](const std::vector<Expr>& axes) {
        return padded(matrix, 0).read({axes.begin(), axes.end()});
    });
}

}  // namespace

bool takes_warpgroups(const TensorProductShape& shape, const Target& target) {
    if (target.arch != "sm_90a" || shape.k == 0 || shape.m == 0 || shape.n == 0) return false;
    int64_t bytes = bytes_of(shape.operand);
    Stored rows = stored(padded_shape(shape));
    bool whole = rows.a[1] * bytes % piece_bytes == 0 && rows.b[1] * bytes % piece_bytes == 0;
    // Parts of sums are made in tiles that are there as a whole.
    constexpr int64_t least_for_parts = 256;
    bool exact = terms_in_unit(shape) == 0 || std::min(shape.m, shape.n) >= least_for_parts;
    return whole && exact && (bytes == 2 || (!shape.transpose_a && shape.transpose_b));
}

ProductTiling best_tiling(const TensorProductShape& shape, const Target& target) {
    if (auto tuned = tuned_tiling(shape, target)) return *tuned;
    if (takes_warpgroups(shape, target)) return warpgroup_tiles(shape);
    return tensor_tiles(shape);
}

bool wants_padded_rows(const TensorProductShape& shape) {
    constexpr int64_t least = 256;  // rows and columns for which each element is read often enough
    Stored s = stored(shape);
    bool uneven =
        (s.a[1] * bytes_of(shape.operand)) % piece_bytes != 0 || (s.b[1] * bytes_of(shape.operand)) % piece_bytes != 0;
    return uneven && std::min(shape.m, shape.n) >= least;
}

TensorProduct declare_tensor_product(const TensorProductShape& shape) {
    TensorProductShape read = padded_shape(shape);
    Stored own = stored(shape), copied = stored(read);
    TensorProduct p;
    p.left = p.a = input("a", shape.operand, with_batch(shape.batch, own.a));
    p.right = p.b = input("b", shape.operand, with_batch(shape.batch, own.b));
    if (shape.pad_rows) {
        p.left = padded_copy(p.a, with_batch(shape.batch, copied.a));
        p.right = padded_copy(p.b, with_batch(shape.batch, copied.b));
    }
    if (shape.add_bias) p.bias = input("bias", shape.result, {shape.n});
    Axis k = reduce_axis("k", read.k);
    Type sum_type = shape.operand == i8 ? i32 : f32;
    p.c = compute("c", with_batch(shape.batch, {shape.m, shape.n}), [&](const std::vector<Expr>& axes) {
        const Expr &i = axes[axes.size() - 2], &j = axes.back();
        auto element = [&](const Tensor& matrix, bool transposed, Expr row, Expr column) {
            std::vector<Operand> indices(axes.begin(), axes.end() - 2);
            if (transposed) std::swap(row, column);
            indices.insert(indices.end(), {row, column});
            return cast(sum_type, matrix.read(indices));
        };
        Expr value = sum(element(p.left, shape.transpose_a, i, k) * element(p.right, shape.transpose_b, k, j), k);
        if (shape.add_bias || shape.apply_gelu) value = cast(f32, value);
        if (shape.add_bias) value = value + cast(f32, p.bias(j));
        if (shape.apply_gelu) value = gelu(value);
        return cast(shape.result, value);
    });
    return p;
}

namespace {

/// The stage of the parts; the sums of them, with what is made of these, are spread over threads.
Stage split_reduction(Schedule& s, const Tensor& c, int64_t block_k, int64_t parts_of_k) {
    int64_t k = require_constant(s.extent(s.reduce(c)));
    int64_t length = divided(divided(k, block_k), parts_of_k) * block_k;
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
    Stage product = tiles.split_k > 1 ? split_reduction(s, c, tiles.block_k, tiles.split_k) : s[c];
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
    if (tiles.stage_result) s.stage(product, Memory::Shared, row);
    s.mma(product, mma_sync, {.m = mi, .n = nj, .k = ki});
    if (tiles.stages > 1) s.pipeline(ko, {.stages = tiles.stages});
}

namespace {

constexpr int registers_of_loads = 40;

/// What a multiprocessor has left, for each thread of the role that computes.
int registers_of_math(int warpgroups) { return std::min(240, (65536 / 128 - registers_of_loads) / warpgroups / 8 * 8); }

}  // namespace

namespace {

/// What the unit computes, and its loops.
struct UnitLoops {
    Stage stage;
    Loop over_k;  ///< whose iterations copies run ahead of
    MmaLoops mma;
};

/// The unit sums all terms of the product.
UnitLoops whole_sums(Schedule& s, Stage product, std::vector<Loop> outer, Loop mi, Loop nj, int64_t block_k) {
    auto [ko, ki] = s.split(s.reduce(product), block_k, Tail::Mask);
    outer.insert(outer.end(), {ko, mi, nj, ki});
    s.order(outer);
    return {product, ko, {mi, nj, ki}};
}

/// The unit sums so many terms, in registers; the product adds these.
UnitLoops parts_in_registers(Schedule& s, Stage product, Stage parts, std::vector<Loop> outer, Loop mi, Loop nj,
                             const WarpgroupTiles& tiles) {
    Loop part = s.reduce(product);
    outer.insert(outer.end(), {part, mi, nj});
    s.order(outer);
    s.at(parts, part);
    s.set_memory(parts, Memory::Registers);
    std::vector<Loop> own = s.data_loops(parts);
    auto [ko, ki] = s.split(s.reduce(parts), tiles.block_k, Tail::Mask);
    Loop i = own[own.size() - 2], j = own.back();
    std::vector<Loop> order(own.begin(), own.end() - 2);
    order.insert(order.end(), {ko, i, j, ki});
    s.order(order);
    return {parts, ko, {tiles.swap ? j : i, tiles.swap ? i : j, ki}};
}

}  // namespace

void schedule_tensor_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b,
                             const WarpgroupTiles& tiles) {
    Stage product = tiles.split_k > 1 ? split_reduction(s, c, tiles.block_k, tiles.split_k) : s[c];
    std::optional<Stage> parts;
    if (tiles.terms_in_unit > 0)
        parts = s.partial(product, s.split(s.reduce(product), tiles.terms_in_unit, Tail::Mask)[0]);
    std::vector<Loop> data = s.data_loops(product), blocks(data.begin(), data.end() - 2);
    auto [bi, ti] = s.split(data[data.size() - 2], tiles.block_m, Tail::Mask);
    auto [bj, tj] = s.split(data.back(), tiles.block_n, Tail::Mask);
    Loop rows = tiles.swap ? tj : ti, nj = tiles.swap ? ti : tj;
    auto [wi, mi] = s.split(rows, (tiles.swap ? tiles.block_n : tiles.block_m) / tiles.warpgroups);
    auto [clusters, rank] = s.split(bi, tiles.cluster, Tail::Mask);
    auto [group, row] = s.split(clusters, group_of(s.extent(clusters), tiles.row_group));
    blocks.insert(blocks.end(), {group, bj, row});
    std::vector<Loop> outer = blocks;
    outer.insert(outer.end(), {rank, wi});
    UnitLoops unit = parts ? parts_in_registers(s, product, *parts, outer, mi, nj, tiles)
                           : whole_sums(s, product, outer, mi, nj, tiles.block_k);
    s.persistent(blocks);
    s.bind(rank, cluster);
    s.bind(wi, warpgroup);
    Stage left = s.stage(unit.stage, a, Memory::Shared, unit.over_k),
          right = s.stage(unit.stage, b, Memory::Shared, unit.over_k);
    if (tiles.stage_result) s.stage(product, Memory::Shared, rank);
    s.mma(unit.stage, wgmma, unit.mma);
    s.pipeline(unit.over_k, {.stages = tiles.stages, .in_flight = 1});
    s.roles({{"load", warps(1), registers(registers_of_loads), {left, right}},
             {"math",
              warpgroups(tiles.warpgroups * tiles.turns),
              registers(registers_of_math(tiles.warpgroups * tiles.turns)),
              {product},
              turns(tiles.turns)}});
}

namespace {

/// A kernel that copies: 16 bytes a thread.
void schedule_copy(Schedule& s, const Tensor& copy) {
    auto [block, inside] = s.split(s.fuse(s.data_loops(copy)), 256 * piece_bytes / bytes_of(copy.type()), Tail::Mask);
    auto [lane_of, element] = s.split(inside, piece_bytes / bytes_of(copy.type()));
    s.bind(block, grid.x);
    s.bind(lane_of, thread);
    s.bind(element, tw::vector);
}

}  // namespace

Schedule tensor_product_schedule(const TensorProduct& product, const ProductTiling& tiling, const Target& target) {
    Schedule s({product.c}, target);
    if (!product.left.same(product.a)) schedule_copy(s, product.left);
    if (!product.right.same(product.b)) schedule_copy(s, product.right);
    std::visit([&](const auto& tiles) { schedule_tensor_product(s, product.c, product.left, product.right, tiles); },
               tiling);
    return s;
}

}  // namespace tw::schedules

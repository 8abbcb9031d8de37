#include "schedules/tensor_product.h"

#include <algorithm>
#include <array>
#include <optional>

#include "dsl/simplify.h"
#include "schedules/choose_elements.h"
#include "schedules/elements_of_product.h"
#include "schedules/elementwise.h"
#include "schedules/loading_roles.h"
#include "schedules/matrices_of_block.h"
#include "schedules/require_sizes.h"
#include "schedules/sum_of_parts.h"
#include "schedules/thin_product.h"
#include "schedules/transposed.h"
#include "schedules/unit_product.h"
#include "schedules/warpgroup_space.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {

namespace {

constexpr int64_t threads_of_warp = 32, threads_of_warpgroup = 128;

/// Whether rows are whole pieces of 16 bytes.
bool has_whole_rows(const Tensor& matrix) {
    return require_constant(matrix.shape().back()) * bytes_of(matrix.type()) % piece_bytes == 0;
}

/// Whether parts of k have as many whole tiles each but the last, which has fewer: no mask of elements tells those.
template <class Tiles>
bool leaves_out_whole_tiles(const Tensor& c, const Tiles& tiles) {
    const Reduce* sum = tiles.split_k > 1 ? only_reduction(c.operation()->outputs[0].body) : nullptr;
    return sum && require_constant(sum->axes[0].as<Variable>()->extent) % tiles.block_k == 0;
}
bool leaves_out_whole_tiles(const Tensor&, const ThinTiles&) { return true; }  // their registers are no copies

struct ReadOperand {
    Tensor read, given;
    bool turned;
};
std::array<ReadOperand, 2> operands_of(const TensorProduct& p) {
    return {ReadOperand{p.left, p.a, p.turns_a}, ReadOperand{p.right, p.b, p.turns_b}};
}

/// Whether a kernel copies what the product reads, into longer rows, or such as lie along terms; where only the number
/// of rows is another, what is missing is zeros on the way into shared memory, if masks of elements tell what it is.
template <class Tiles>
bool is_copied(const ReadOperand& of, const Tensor& c, const Tiles& tiles) {
    return !of.read.same(of.given) && (of.turned || !has_whole_rows(of.given) || leaves_out_whole_tiles(c, tiles));
}

template <class Tiles>
void read_as_given(Schedule& s, const TensorProduct& p, const Tiles& tiles) {
    for (const ReadOperand& of : operands_of(p))
        if (!of.read.same(of.given) && !is_copied(of, p.c, tiles)) s.inline_stage(s[of.read]);
}

/// The stage of so many parts, which end with whole tiles, or whole blocks of scales, of which c sums one a step.
Stage split_reduction(Schedule& s, const TensorProduct& p, int64_t block_k, int64_t parts_of_k) {
    const int64_t k = require_constant(s.extent(s.reduce(p.c))), step = p.scales.empty() ? block_k : 1;
    return split_sum(s, p.c, divided(divided(k, step), parts_of_k) * step);
}

/// The tiles in the order in which blocks take them: groups of rows walk through the columns together, or groups of
/// columns through the rows, where that is the number that has divisors to make groups of.
std::vector<Loop> tile_order(Schedule& s, Loop rows, Loop columns, const WarpgroupTiles& tiles, bool by_rows) {
    const TileWalk walk = walk_of(as_constant(s.extent(rows)).value_or(1),
                                  by_rows ? 1 : as_constant(s.extent(columns)).value_or(1), tiles.raster_group);
    if (walk.by_columns) {
        auto [group, column] =
            s.split(columns, walk.together, {"group_n", tiles.cluster_columns > 1 ? "cluster_n" : "block_n"});
        return {group, rows, column};
    }
    auto [group, row] = s.split(rows, walk.together, {"group_m", tiles.cluster > 1 ? "cluster_m" : "block_m"});
    return {group, columns, row};
}

/// What the unit computes, and its loops.
struct UnitLoops {
    Stage stage;
    Loop over_k;  ///< whose iterations copies run ahead of
    MmaLoops mma;
};

/// The unit sums all terms of the result; of as many matrices as one of its warps has.
UnitLoops whole_sums(Schedule& s, Stage result, std::vector<Loop> outer, const std::vector<Loop>& matrices, Loop mi,
                     Loop nj, int64_t block_k) {
    auto [ko, ki] = s.split(s.reduce(result), block_k, Tail::Mask, {"k_outer", "k_inner"});
    outer.push_back(ko);
    outer.insert(outer.end(), matrices.begin(), matrices.end());
    outer.insert(outer.end(), {mi, nj, ki});
    s.order(outer);
    return {result, ko, {mi, nj, ki}};
}

/// The loop over whole tiles of so many, where its stage makes only what is left of one; outer loops go to `outer`.
Loop whole_tile(Schedule& s, Loop loop, const Expr& size, std::vector<Loop>& outer) {
    const auto own = as_constant(s.extent(loop)), all = as_constant(size);
    if (!own || !all || *own >= *all) return loop;
    auto [one, inside] = s.split(loop, *all, Tail::Mask);
    outer.push_back(one);
    return inside;
}

/// The unit's sums stay in registers, where the result takes them: it adds them, if they are parts of its own sums, or
/// computes with several of them, `together` of the product's columns for each of its own.
UnitLoops sums_in_registers(Schedule& s, Stage result, Stage sums, std::vector<Loop> outer, Loop mi, Loop nj,
                            int64_t together, int64_t block_k, bool swap) {
    const Expr rows = s.extent(swap ? nj : mi), columns = simplify(s.extent(swap ? mi : nj) * together);
    if (s.reduces(result)) {
        Loop part = s.reduce(result);
        s.at(sums, part);
        outer.insert(outer.end(), {part, mi, nj});
    } else {
        s.at(sums, outer.back());
        auto [eight, column] = s.split(nj, gated_columns, {"eight", "column"});
        outer.insert(outer.end(), {mi, eight, column});
    }
    s.order(outer);
    s.set_memory(sums, Memory::Registers);
    std::vector<Loop> own = s.data_loops(sums), order(own.begin(), own.end() - 2);
    auto [ko, ki] = s.split(s.reduce(sums), block_k, Tail::Mask, {"k_outer", "k_inner"});
    Loop i = whole_tile(s, own[own.size() - 2], rows, order), j = whole_tile(s, own.back(), columns, order);
    order.insert(order.end(), {ko, i, j, ki});
    s.order(order);
    return {sums, ko, {swap ? j : i, swap ? i : j, ki}};
}

/// The sums of a block's whole tile stay in registers; the result takes them one epilogue tile of columns after
/// another. Warpgroups share the rows of both in the same way.
UnitLoops sums_before_epilogue(Schedule& s, Stage sums, std::vector<Loop> outer, Loop epilogue_tile, Loop wi, Loop mi,
                               Loop nj, bool gated, const WarpgroupTiles& tiles) {
    s.at(sums, outer.back());
    outer.insert(outer.end(), {epilogue_tile, wi, mi});
    if (gated) {
        auto [eight, column] = s.split(nj, gated_columns, {"eight", "column"});
        outer.insert(outer.end(), {eight, column});
    } else {
        outer.push_back(nj);
    }
    s.order(outer);
    s.set_memory(sums, Memory::Registers);
    std::vector<Loop> order = s.data_loops(sums);
    Loop j = order.back(), i = order[order.size() - 2];
    order.resize(order.size() - 2);
    auto [own_wi, own_mi] = s.split(i, tiles.block_m / tiles.warpgroups, {"warpgroup_m", "m_inner"});
    auto [ko, ki] = s.split(s.reduce(sums), tiles.block_k, Tail::Mask, {"k_outer", "k_inner"});
    order.insert(order.end(), {own_wi, ko, own_mi, j, ki});
    s.order(order);
    s.bind(own_wi, warpgroup);
    return {sums, ko, {own_mi, j, ki}};
}

/// Copies of all that the unit's products read in a step, each once.
std::vector<StageRef> stage_operands(Schedule& s, const TensorProduct& p, const UnitLoops& unit) {
    std::vector<Tensor> operands{p.left, p.right};
    for (const std::array<Tensor, 2>& product : p.more)
        for (const Tensor& operand : product)
            if (std::ranges::none_of(operands, [&](const Tensor& other) { return other.same(operand); }))
                operands.push_back(operand);
    std::vector<StageRef> copies;
    for (const Tensor& operand : operands) copies.push_back(s.stage(unit.stage, operand, Memory::Shared, unit.over_k));
    return copies;
}

/// How many columns of the product make one of the result.
int64_t columns_for_one(const TensorProduct& p) {
    if (!p.product.defined()) return 1;
    return require_constant(p.product.shape().back()) / require_constant(p.c.shape().back());
}

UnitLoops unit_loops(Schedule& s, const TensorProduct& p, Stage result, std::optional<Stage> sums,
                     const std::vector<Loop>& outer, Loop mi, Loop nj, int64_t block_k, bool swap,
                     const std::vector<Loop>& matrices = {}) {
    if (sums) return sums_in_registers(s, result, *sums, outer, mi, nj, columns_for_one(p), block_k, swap);
    return whole_sums(s, result, outer, matrices, mi, nj, block_k);
}

/// What is below the loops over blocks; the result leaves at the end of each iteration of `leaving`.
struct BlockLoops {
    UnitLoops unit;
    Loop leaving;
};

BlockLoops block_loops(Schedule& s, const TensorProduct& p, Stage result, std::optional<Stage> sums,
                       std::vector<Loop> outer, Loop wi, Loop mi, Loop nj, const WarpgroupTiles& tiles) {
    if (tiles.epilogue_columns > 0) {
        auto [tile, column] = s.split(nj, tiles.epilogue_columns, {"epilogue_tile", "epilogue_n"});
        bool gated = columns_for_one(p) > 1;
        return {sums_before_epilogue(s, *sums, outer, tile, wi, mi, column, gated, tiles), tile};
    }
    Loop leaving = outer.back();
    outer.push_back(wi);
    return {unit_loops(s, p, result, sums, outer, mi, nj, tiles.block_k, tiles.swap), leaving};
}

/// The loops of the result's dimensions; blocks of rows that have a matrix of their own are one more in front of rows.
std::vector<Loop> matrix_loops(Schedule& s, const TensorProduct& p, Stage result) {
    std::vector<Loop> data = s.data_loops(result);
    const int64_t rows = rows_of_matrix(p.c);
    if (rows == 0) return data;
    const auto row = data.end() - 2;
    auto [matrix, inside] = s.split(*row, rows, {"matrix", "row"});
    *row = inside;
    data.insert(row, matrix);
    return data;
}

/// Whether the sums that the result computes with are parts of k, which kernels of their own add before it is made:
/// blocks of scales have their parts in the result instead.
bool makes_sums_apart(const TensorProduct& p, int64_t split_k) {
    return split_k > 1 && p.product.defined() && p.scales.empty();
}

/// The product as its tiles sum it.
TensorProduct summed_by_tiles(const TensorProduct& p, int64_t split_k) {
    TensorProduct sums = p;
    if (makes_sums_apart(p, split_k)) sums.c = p.product, sums.product = {};
    return sums;
}

template <class Tiles>
void schedule_sums_apart(Schedule& s, const TensorProduct& p, const Tiles& tiles) {
    schedule_tensor_product(s, summed_by_tiles(p, tiles.split_k), tiles);
    schedule_elements(s, s[p.c]);
}

/// The rows of tiles. Where a tile has all rows of a matrix, matrices are like rows of it.
struct RowLoops {
    std::vector<Loop> batches;
    Loop tiles, inside;
};

RowLoops split_rows(Schedule& s, const std::vector<Loop>& data, int64_t block_m, const SplitNames& names) {
    RowLoops rows{{data.begin(), data.end() - 2}, {}, data[data.size() - 2]};
    if (!rows.batches.empty() && is_constant(s.extent(rows.inside), block_m)) {
        rows.tiles = rows.batches.back();
        rows.batches.pop_back();
        return rows;
    }
    auto [tile, inside] = s.split(rows.inside, block_m, Tail::Mask, names);
    return {rows.batches, tile, inside};
}

/// Whether elements that lie side by side belong to neighbouring rows, or columns, of the result.
bool lies_along_result(const Tensor& scales, const Tensor& c) {
    const std::vector<Expr>& axes = c.operation()->axes;
    bool found = false;
    visit(c.operation()->outputs[0].body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        const bool is_it = read && read->operation == scales.operation();
        found = found || (is_it && std::any_of(axes.end() - 2, axes.end(),
                                               [&](const Expr& axis) { return axis.same(read->indices.back()); }));
    });
    return found;
}

/// Those that lie along rows or columns come with the operands, as boxes, which are returned.
std::vector<StageRef> stage_scales(Schedule& s, const TensorProduct& p, Stage result, Loop step) {
    std::vector<StageRef> boxes;
    std::vector<Tensor> scales(p.scales.rbegin(), p.scales.rend());
    auto is_box = [&](const Tensor& each) { return has_whole_rows(each) && lies_along_result(each, p.c); };
    std::ranges::stable_partition(scales, [&](const Tensor& each) { return !is_box(each); });
    for (const Tensor& each : scales) {
        Stage copy = s.stage(result, each, is_box(each) ? Memory::Shared : Memory::Registers, step);
        if (is_box(each)) boxes.push_back(copy);
    }
    return boxes;
}

}  // namespace

void schedule_tensor_product(Schedule& s, const TensorProduct& p, const TensorTiles& tiles,
                             std::source_location where) {
    CalledFrom caller(where);
    require_sizes("tensor tiles",
                  {{"block_m", tiles.block_m},
                   {"block_n", tiles.block_n},
                   {"block_k", tiles.block_k},
                   {"warp_m", tiles.warp_m},
                   {"warp_n", tiles.warp_n},
                   {"block_b", tiles.block_b},
                   {"warp_b", tiles.warp_b},
                   {"stages", tiles.stages},
                   {"split_k", tiles.split_k},
                   {"raster_group", tiles.raster_group}},
                  where);
    if (makes_sums_apart(p, tiles.split_k)) return schedule_sums_apart(s, p, tiles);
    Stage result = tiles.split_k > 1 ? split_reduction(s, p, tiles.block_k, tiles.split_k) : s[p.c];
    std::optional<Stage> sums;
    if (p.product.defined()) sums = s[p.product];
    std::vector<Loop> data = matrix_loops(s, p, result);
    const BatchLoops batch = split_batch(s, p, {data.begin(), data.end() - 2}, tiles, where);
    Loop i = data[data.size() - 2], j = data.back();
    auto [bi, it] = s.split(i, tiles.block_m, Tail::Mask, {"blocks_m", "tile_m"});
    auto [bj, jt] = s.split(j, tiles.block_n / columns_for_one(p), Tail::Mask, {"block_n", "tile_n"});
    auto [wi, mi] = s.split(it, tiles.warp_m, {"warp_m", "m_inner"});
    auto [wj, nj] = s.split(jt, tiles.warp_n / columns_for_one(p), {"warp_n", "n_inner"});
    auto [group, row] =
        s.split(bi, largest_divisor(as_constant(s.extent(bi)).value_or(1), tiles.raster_group), {"group_m", "block_m"});
    std::vector<Loop> outer = batch.blocks;
    outer.insert(outer.end(), {group, bj, row});
    outer.insert(outer.end(), batch.warps.begin(), batch.warps.end());
    outer.insert(outer.end(), {wi, wj});
    UnitLoops unit = unit_loops(s, p, result, sums, outer, mi, nj, tiles.block_k, false, batch.own);
    bind_blocks(s, batch, {group, bj, row});
    for (Loop of_warps : batch.warps) s.bind(of_warps, warp);
    s.bind(wi, warp);
    s.bind(wj, warp);
    stage_operands(s, p, unit);
    read_as_given(s, p, tiles);
    const int64_t warps =
        tiles.block_m / tiles.warp_m * (tiles.block_n / tiles.warp_n) * (tiles.block_b / tiles.warp_b);
    make_elements_of_tile(s, p.elements, row, warps * threads_of_warp);
    if (tiles.stage_result) s.stage(result, Memory::Shared, row);
    s.mma(unit.stage, mma_sync, unit.mma);
    if (tiles.stages > 1) s.pipeline(unit.over_k, {.stages = tiles.stages});
}

void schedule_tensor_product(Schedule& s, const TensorProduct& p, const WarpgroupTiles& tiles,
                             std::source_location where) {
    CalledFrom caller(where);
    require_sizes("warpgroup tiles",
                  {{"block_m", tiles.block_m},
                   {"block_n", tiles.block_n},
                   {"block_k", tiles.block_k},
                   {"warpgroups", tiles.warpgroups},
                   {"cluster", tiles.cluster},
                   {"cluster_columns", tiles.cluster_columns},
                   {"ping_pong", tiles.ping_pong},
                   {"stages", tiles.stages},
                   {"split_k", tiles.split_k},
                   {"raster_group", tiles.raster_group},
                   {"epilogue_columns", tiles.epilogue_columns, 0},
                   {"promotion_interval", tiles.promotion_interval, 0}},
                  where);
    if (makes_sums_apart(p, tiles.split_k)) return schedule_sums_apart(s, p, tiles);
    Stage result = tiles.split_k > 1 ? split_reduction(s, p, tiles.block_k, tiles.split_k) : s[p.c];
    std::optional<Stage> sums;
    if (p.product.defined()) sums = s[p.product];
    if (tiles.epilogue_columns > 0 && !sums) sums = s.accumulators(result);
    if (tiles.promotion_interval > 0)
        sums = s.rfactor(result,
                         s.split(s.reduce(result), tiles.promotion_interval, Tail::Mask, {"part_k", "k_in_part"})[0]);
    std::vector<Loop> data = matrix_loops(s, p, result);
    const std::string side = tiles.swap ? "n" : "m";  // of the product, along rows of the instruction
    auto [blocks, bi, ti] = split_rows(s, data, tiles.block_m, {"blocks_m", tiles.swap ? "m_inner" : "tile_m"});
    auto [bj, tj] = s.split(data.back(), tiles.block_n / columns_for_one(p), Tail::Mask,
                            {tiles.cluster_columns > 1 ? "blocks_n" : "block_n", tiles.swap ? "tile_n" : "n_inner"});
    Loop rows = tiles.swap ? tj : ti, nj = tiles.swap ? ti : tj;
    auto [wi, mi] = s.split(rows, (tiles.swap ? tiles.block_n : tiles.block_m) / tiles.warpgroups,
                            {"warpgroup_" + side, side + "_inner"});
    // Blocks of a cluster share the operands that are the same for them.
    std::vector<Loop> ranks;
    auto clusters_of = [&](Loop tile, int together, const SplitNames& names) {
        if (together == 1) return tile;
        auto [clusters, rank] = s.split(tile, together, Tail::Mask, names);
        ranks.push_back(rank);
        return clusters;
    };
    Loop rows_of_clusters = clusters_of(bi, tiles.cluster, {"clusters_m", "rank_m"}),
         column = clusters_of(bj, tiles.cluster_columns, {"cluster_n", "rank_n"});
    for (Loop loop : tile_order(s, rows_of_clusters, column, tiles, p.growing)) blocks.push_back(loop);
    std::vector<Loop> outer = blocks;
    outer.insert(outer.end(), ranks.begin(), ranks.end());
    auto [unit, leaving] = block_loops(s, p, result, sums, outer, wi, mi, nj, tiles);
    const bool is_scaled = !p.scales.empty();
    if (is_scaled) unit.over_k = s.reduce(result);  // its steps are blocks of scales
    s.persistent(blocks, {.blocks = static_cast<int>(blocks_at_once(s.target(), tiles.cluster * tiles.cluster_columns)),
                          .longest_first = p.growing});
    for (Loop rank : ranks) s.bind(rank, cluster);
    s.bind(wi, warpgroup);
    std::vector<StageRef> loads = stage_operands(s, p, unit);
    read_as_given(s, p, tiles);
    // Under way while products are summed.
    if (p.bias.defined() && tiles.split_k == 1)
        s.stage(p.product.defined() ? *sums : result, p.bias, Memory::Shared, outer.back());
    make_elements_of_tile(s, p.elements, leaving, int64_t{tiles.warpgroups} * threads_of_warpgroup);
    if (tiles.stage_result) {
        Stage out = s.stage(result, Memory::Shared, leaving);
        if (tiles.store_boxes) s.via(out, Copy::Tma);
    }
    s.mma(unit.stage, wgmma, unit.mma);
    for (const StageRef& scales : stage_scales(s, p, result, unit.over_k)) loads.push_back(scales);
    s.pipeline(unit.over_k, {.stages = tiles.stages, .in_flight = is_scaled ? 0 : 1});
    s.roles(loading_roles(
        s.target(), loads, result,
        {.warpgroups = tiles.warpgroups * tiles.ping_pong, .loading = 40, .most = 240, .ping_pong = tiles.ping_pong}));
}

void schedule_tensor_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b, const TensorTiles& tiles,
                             std::source_location where) {
    CalledFrom caller(where);
    schedule_tensor_product(s, {.a = a, .b = b, .bias = {}, .c = c, .left = a, .right = b}, tiles);
}

void schedule_tensor_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b,
                             const WarpgroupTiles& tiles, std::source_location where) {
    CalledFrom caller(where);
    schedule_tensor_product(s, {.a = a, .b = b, .bias = {}, .c = c, .left = a, .right = b}, tiles);
}

Schedule tensor_product_schedule(const TensorProduct& product, const ProductTiling& tiling, const Target& target,
                                 std::source_location where) {
    CalledFrom caller(where);
    Schedule s({product.c}, target);
    auto schedule = [&](const auto& tiles) {
        for (const ReadOperand& of : operands_of(product))
            if (is_copied(of, summed_by_tiles(product, tiles.split_k).c, tiles)) schedule_copy(s, of.read, {product.c});
        schedule_tensor_product(s, product, tiles);
    };
    std::visit(schedule, tiling);
    return s;
}

}  // namespace tw::schedules

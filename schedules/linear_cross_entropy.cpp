#include "schedules/linear_cross_entropy.h"

#include <numbers>
#include <regex>

#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr double to_base_2 = std::numbers::log2e, to_base_e = std::numbers::ln2;
constexpr double bytes_of_row = 8 + 2 * 4;                    // label, lse, and loss or its adjoint
constexpr int64_t columns_of_box = 64;                        // of 2 bytes, 128 together
constexpr int64_t rows_of_block = 4, lanes = 32;              // where parts of a row are added up, a warp a row
constexpr int64_t threads_of_row = 256, vector_elements = 8;  // where dlogits are made

void check_pieces(const LinearCrossEntropyShape& shape) {
    const int64_t piece = piece_bytes / bytes_of(shape.type);
    if (shape.depth % piece != 0 || shape.vocabulary % piece != 0)
        throw_error(
            Error,
            "linear cross-entropy: rows of {} and of {} elements are not whole pieces of 16 bytes; give a depth "
            "and a vocabulary that are multiples of {}",
            shape.depth, shape.vocabulary, piece);
}

}  // namespace

double LinearCrossEntropyShape::flops_of_product() const {
    return 2 * as_double(rows) * as_double(depth) * as_double(vocabulary);
}

double LinearCrossEntropyShape::bytes() const {
    const double operands = as_double(rows + vocabulary) * as_double(depth);
    return (operands + as_double(rows) * as_double(vocabulary)) * bytes_of(type) + as_double(rows) * bytes_of_row;
}

double LinearCrossEntropyShape::bytes_of_gradients() const { return 2 * bytes() - as_double(rows) * bytes_of_row; }

LinearCrossEntropy declare_linear_cross_entropy(const LinearCrossEntropyShape& shape, int64_t columns,
                                                std::source_location where) {
    require_sizes("linear cross-entropy", {{"columns", columns}}, where);
    check_pieces(shape);
    const int64_t R = shape.rows, V = shape.vocabulary, T = divided(V, columns);
    LinearCrossEntropy e;
    e.x = input("x", shape.type, {R, shape.depth});
    e.w = input("w", shape.type, {V, shape.depth});
    e.label = input("label", i64, {R});
    Axis k = reduce_axis("k", shape.depth), j1 = reduce_axis("j1", columns), j2 = reduce_axis("j2", columns),
         t1 = reduce_axis("t1", T), t2 = reduce_axis("t2", T);
    e.scores = compute("scores", {R, V}, [&](Expr i, Expr v) {
        return round_to(shape.type, sum(cast(f32, e.x(i, k)) * cast(f32, e.w(v, k)), k));
    });
    e.logits = compute("logits", {R, V}, [&](Expr i, Expr v) { return cast(shape.type, e.scores(i, v)); });
    auto score = [&](const Expr& i, const Expr& v) {
        return V % columns == 0 ? e.scores(i, v) : padded(e.scores, -infinity)(i, v);
    };
    e.largest = compute("largest", {R, T}, [&](Expr i, Expr t) { return reduce_max(score(i, t * columns + j1), j1); });
    e.part = compute("part", {R, T}, [&](Expr i, Expr t) {
        Expr shift = e.largest(i, t) * to_base_2;
        return shift + log2(sum(exp2(score(i, t * columns + j2) * to_base_2 - shift), j2));
    });
    e.largest_part = compute("largest_part", {R}, [&](Expr i) { return reduce_max(e.part(i, t1), t1); });
    e.lse = compute("lse", {R},
                    [&](Expr i) { return e.largest_part(i) + log2(sum(exp2(e.part(i, t2) - e.largest_part(i)), t2)); });
    e.loss = compute("loss", {R}, [&](Expr i) { return e.lse(i) * to_base_e - cast(f32, e.logits(i, e.label(i))); });
    return e;
}

LinearCrossEntropyGradients declare_linear_cross_entropy_gradients(const LinearCrossEntropyShape& shape, bool parts) {
    check_pieces(shape);
    const auto& [R, D, V, type] = shape;
    LinearCrossEntropyGradients g;
    g.x = input("x", type, {R, D});
    g.w = input("w", type, {V, D});
    g.label = input("label", i64, {R});
    g.logits = input("logits", type, {R, V});
    g.lse = input("lse", f32, {R});
    g.dloss = input("dloss", f32, {R});
    g.dlogits = compute("dlogits", {R, V}, [&](Expr i, Expr v) {
        Expr share = exp2(cast(f32, g.logits(i, v)) * to_base_2 - g.lse(i));
        return cast(shape.type, (share - select(g.label(i) == v, 1.0, 0.0)) * g.dloss(i));
    });
    Axis v = reduce_axis("v", V), i = reduce_axis("i", R);
    g.dx = compute("dx", {R, D}, [&](Expr row, Expr e) {
        return cast(shape.type, sum(cast(f32, g.dlogits(row, v)) * cast(f32, g.w(v, e)), v));
    });
    if (parts) g.dw_before = input("dw_before", f32, {V, D});
    g.dw = compute("dw", {V, D}, [&](Expr word, Expr e) {
        Expr total = sum(cast(f32, g.dlogits(i, word)) * cast(f32, g.x(i, e)), i);
        if (!parts) return cast(shape.type, total);
        return total + select(scalar("part", i32) == 0, 0.0, g.dw_before(word, e));
    });
    return g;
}

WarpgroupTiles linear_cross_entropy_tiles(const LinearCrossEntropyShape& shape) {
    // Tiles that the vocabulary ends within are narrower: their masks take registers.
    const bool whole = shape.vocabulary % 192 == 0;
    return {.block_m = 128,
            .block_n = whole ? 192 : 128,
            .warpgroups = 1,
            .ping_pong = 2,
            .stages = whole ? 4 : 5,
            .stage_result = false,  // logits leave through shared memory, scores do not leave
            .raster_group = 16};
}

namespace {

/// Sums of a row's parts, the loss and what is saved of it: a warp a row.
void schedule_sums_of_parts(Schedule& s, const LinearCrossEntropy& e) {
    auto [i] = s.loops<1>(e.lse);
    auto [block, row] = s.split(i, rows_of_block, Tail::Mask, {"block", "row"});
    s.bind(block, grid.x);
    s.bind(row, warp);
    s.bind(s.split(s.reduce(e.lse), lanes, Tail::Mask)[1], lane);
    s.at(e.largest_part, row);
    s.set_memory(e.largest_part, Memory::Registers);
    s.bind(s.split(s.reduce(e.largest_part), lanes, Tail::Mask)[1], lane);
    s.at(e.loss, row);
}

}  // namespace

Schedule linear_cross_entropy_schedule(const LinearCrossEntropyShape& shape, const WarpgroupTiles& tiles,
                                       const Target& target, std::source_location where) {
    CalledFrom caller(where);
    require_sizes("linear cross-entropy", {{"block_n", tiles.block_n}, {"warpgroups", tiles.warpgroups}}, where);
    const LinearCrossEntropy e = declare_linear_cross_entropy(shape, tiles.block_n);
    const int64_t rows_of_group = tiles.block_m / tiles.warpgroups;
    Schedule s({e.loss, e.lse, e.logits}, target);
    schedule_tensor_product(s, e.scores, e.x, e.w, tiles);
    const size_t ranks = (tiles.cluster > 1 ? 1 : 0) + (tiles.cluster_columns > 1 ? 1 : 0);
    const Loop tile = s.all_loops(e.scores)[2 + ranks];  // below raster groups, columns and rows
    for (const Tensor& reduced : {e.largest, e.part}) {  // of a row, the lanes that have its scores
        s.at(reduced, tile);
        auto [i, t] = s.loops<2>(reduced);
        auto [group, row] = s.split(i, rows_of_group, {"warpgroup_of_" + reduced.name(), "row"});
        s.order({t, group, s.reduce(reduced), row});
        s.bind(group, warpgroup);
    }
    s.at(e.logits, tile);
    auto [i, v] = s.loops<2>(e.logits);
    auto [epilogue_tile, column] = s.split(v, columns_of_box, {"epilogue_tile", "epilogue_n"});
    auto [group, row] = s.split(i, rows_of_group, {"warpgroup_of_logits", "row"});
    s.order({epilogue_tile, group, row, column});
    s.bind(group, warpgroup);
    s.via(s.stage(e.logits, Memory::Shared, epilogue_tile), Copy::Tma);
    for (const Tensor& kept : {e.scores, e.largest}) s.set_memory(kept, Memory::Registers);
    schedule_sums_of_parts(s, e);
    return s;
}

LinearGradientTilings linear_gradient_tilings(const LinearCrossEntropyShape& shape, bool parts, const Target& target) {
    const auto& [R, D, V, type] = shape;
    LinearGradientTilings tilings{
        .dx = best_tiling({.m = R, .n = D, .k = V, .operand = type, .result = type}, target),
        .dw = best_tiling({.m = V, .n = D, .k = R, .operand = type, .result = type, .transpose_a = true}, target)};
    // What overwrites what it was added to leaves registers for memory, while the other group multiplies.
    if (parts) tilings.dw = WarpgroupTiles{.warpgroups = 1, .ping_pong = 2, .stage_result = false};
    return tilings;
}

Schedule linear_cross_entropy_gradients_schedule(const LinearCrossEntropyShape& shape, bool parts,
                                                 const LinearGradientTilings& tilings, const Target& target,
                                                 std::source_location where) {
    CalledFrom caller(where);
    const LinearCrossEntropyGradients g = declare_linear_cross_entropy_gradients(shape, parts);
    Schedule s({g.dx, g.dw, g.dlogits}, target);
    s.in_place(g.dlogits, g.logits);
    if (parts) s.in_place(g.dw, g.dw_before);
    auto [i, v] = s.loops<2>(g.dlogits);
    auto [step, in_step] = s.split(v, threads_of_row * vector_elements, Tail::Mask, {"step", "in_step"});
    auto [t, element] = s.split(in_step, vector_elements, {"t", "element"});
    s.bind(i, grid.x);
    s.bind(t, thread);
    s.bind(element, tw::vector);
    std::visit([&](const auto& tiles) { schedule_tensor_product(s, g.dx, g.dlogits, g.w, tiles); }, tilings.dx);
    std::visit([&](const auto& tiles) { schedule_tensor_product(s, g.dw, g.dlogits, g.x, tiles); }, tilings.dw);
    return s;
}

std::optional<NamedLinearCrossEntropy> parse_linear_cross_entropy(const std::string& name) {
    static const std::string number_text = "([1-9][0-9]{0,6})", by = "x" + number_text;
    static const std::regex form("linear_cross_entropy(_gradients)?_(bf16|f16)_" + number_text + by + by + "(_part)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    NamedLinearCrossEntropy named{.shape = {.rows = std::stoll(match[3]),
                                            .depth = std::stoll(match[4]),
                                            .vocabulary = std::stoll(match[5]),
                                            .type = match[2] == "bf16" ? bf16 : f16},
                                  .gradients = match[1].matched,
                                  .parts = match[6].matched};
    if (named.shape.depth % 8 != 0 || named.shape.vocabulary % 8 != 0) return {};
    if (named.parts && !named.gradients) return {};
    return named;
}

}  // namespace tw::schedules

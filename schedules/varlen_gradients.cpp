#include "schedules/varlen_gradients.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "dsl/differentiate.h"
#include "schedules/elementwise.h"
#include "schedules/gradient_nest.h"
#include "schedules/loading_roles.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t threads_of_delta = 128;

const double to_base_2 = std::log2(std::exp(1.0));

double scale_of(const VarlenShape& shape) { return 1 / std::sqrt(as_double(shape.depth)); }

/// What tiles of one side go through of the other: elements from the tile's first on, in whole steps.
struct Walk {
    Tensor tiles;  ///< the table
    int64_t of_tile, step, most;
    int64_t multiple;  ///< of the first

    Expr tile(const Expr& element) const { return element / of_tile; }
    Axis axis(const std::string& name, const Expr& element) const {
        const Expr steps = (cast(i64, tiles(tile(element), 1)) + (step - 1)) / step;
        return reduce_axis(name, min(steps * step, most));
    }
    /// Of `all`, [elements, heads, extent], those of each tile.
    Tensor view(const std::string& name, const Tensor& all) const {
        return compute(name, {tiles.shape()[0], most, all.shape()[1], all.shape()[2]},
                       [&](Expr t, Expr i, Expr h, Expr x) { return padded(all, 0.0)(first(t) + i, h, x); });
    }
    /// Of numbers, [heads, elements].
    Tensor view_of_numbers(const std::string& name, const Tensor& all) const {
        return compute(name, {tiles.shape()[0], all.shape()[0], most},
                       [&](Expr t, Expr h, Expr i) { return padded(all, 0.0)(h, first(t) + i); });
    }

private:
    Expr first(const Expr& t) const { return cast(i64, tiles(t, 0)) / multiple * multiple; }
};

Expr is_seen(const Tensor& seen, const Expr& element, const Expr& other) {
    return cast(i64, seen(element, 0)) <= other && other < cast(i64, seen(element, 1));
}

/// Over rows and the keys of their tiles.
VarlenScores scores_of_queries(const VarlenShape& shape, const VarlenGradients& a, const Walk& through) {
    const auto& [S, N, H, D, E, G, type] = shape;
    const Axis d = reduce_axis("d", D), w = reduce_axis("w", E);
    VarlenScores of;
    of.s = compute("s_of_dq", {H, S, through.most}, [&](Expr h, Expr i, Expr j) {
        return sum(cast(f32, a.q(i, h, d)) * cast(f32, a.k_tile(through.tile(i), j, h / shape.group, d)), d);
    });
    of.p = compute("p_of_dq", {H, S, through.most}, [&](Expr h, Expr i, Expr j) {
        const Expr weight = exp2(of.s(h, i, j) * (to_base_2 * scale_of(shape)) - a.lse(h, i));
        return select(is_seen(a.seen, i, j), weight, 0.0);
    });
    of.dp = compute("dp_of_dq", {H, S, through.most}, [&](Expr h, Expr i, Expr j) {
        return sum(cast(f32, a.g(i, h, w)) * cast(f32, a.v_tile(through.tile(i), j, h / shape.group, w)), w);
    });
    of.ds = compute("ds_of_dq", {H, S, through.most},
                    [&](Expr h, Expr i, Expr j) { return of.p(h, i, j) * (of.dp(h, i, j) - a.delta(h, i)); });
    return of;
}

/// Over keys and the rows of their tiles.
VarlenScores scores_of_keys(const VarlenShape& shape, const VarlenGradients& a, const Walk& through,
                            const std::string& suffix) {
    const auto& [S, N, H, D, E, G, type] = shape;
    const Axis d = reduce_axis("d", D), w = reduce_axis("w", E);
    VarlenScores of;
    of.s = compute("s" + suffix, {H, through.most, N}, [&](Expr h, Expr i, Expr j) {
        return sum(cast(f32, a.q_tile(through.tile(j), i, h, d)) * cast(f32, a.k(j, h / shape.group, d)), d);
    });
    of.p = compute("p" + suffix, {H, through.most, N}, [&](Expr h, Expr i, Expr j) {
        const Expr weight = exp2(of.s(h, i, j) * (to_base_2 * scale_of(shape)) - a.lse_tile(through.tile(j), h, i));
        return select(is_seen(a.seen_of_keys, j, i), weight, 0.0);
    });
    of.dp = compute("dp" + suffix, {H, through.most, N}, [&](Expr h, Expr i, Expr j) {
        return sum(cast(f32, a.g_tile(through.tile(j), i, h, w)) * cast(f32, a.v(j, h / shape.group, w)), w);
    });
    of.ds = compute("ds" + suffix, {H, through.most, N}, [&](Expr h, Expr i, Expr j) {
        return of.p(h, i, j) * (of.dp(h, i, j) - a.delta_tile(through.tile(j), h, i));
    });
    return of;
}

void declare_inputs(const VarlenShape& shape, const GradientTiles& tiles, const VarlenSaved& saved,
                    VarlenGradients& a) {
    const auto& [S, N, H, D, E, G, type] = shape;
    auto given = [](const Tensor& tensor, const std::string& name, Type of, const Shape& extents) {
        return tensor.defined() ? tensor : input(name, of, extents);
    };
    a.q = given(saved.q, "q", type, {S, H, D});
    a.k = given(saved.k, "k", type, {N, H / G, D});
    a.v = given(saved.v, "v", type, {N, H / G, E});
    a.g = given(saved.g, "g", type, {S, H, E});
    a.o = given(saved.o, "o", type, {S, H, E});
    a.lse = given(saved.lse, "lse", f32, {H, S});
    a.tiles = given(saved.tiles, "tiles", i32, {divided(S, tiles.query_rows), 2});
    a.seen = given(saved.seen, "seen", i32, {S, 2});
    a.tiles_of_keys = given(saved.tiles_of_keys, "tiles_of_keys", i32, {divided(N, tiles.key_rows), 2});
    a.seen_of_keys = given(saved.seen_of_keys, "seen_of_keys", i32, {N, 2});
    // As many as boxes of them want; those behind the last row are its own.
    const int64_t with_more = rounded_up(S, rows_of_box);
    auto there = [&](const Expr& i) { return with_more == shape.rows ? i : min(i, shape.rows - 1); };
    const Axis e = reduce_axis("e", E);
    a.delta = compute("delta", {H, with_more}, [&](Expr h, Expr i) {
        return sum(cast(f32, a.g(there(i), h, e)) * cast(f32, a.o(there(i), h, e)), e);
    });
    a.lse_of_keys = a.lse;
    if (with_more != S)
        a.lse_of_keys = compute("lse_of_keys", {H, with_more}, [&](Expr h, Expr i) { return a.lse(h, there(i)); });
}

}  // namespace

VarlenGradients declare_varlen_gradients(const VarlenShape& shape, const GradientTiles& tiles, const VarlenSaved& saved,
                                         std::source_location where) {
    check_varlen(shape, where);
    require_gradient_tiles(tiles, where);
    const auto& [S, N, H, D, E, G, type] = shape;
    if (tiles.passes.kept)
        throw_error(Error, "varlen attention: adjoints of scores cannot be kept; declare gradients without");
    VarlenGradients a;
    declare_inputs(shape, tiles, saved, a);
    const Walk keys{a.tiles, tiles.query_rows, tiles.query_step, rounded_up(N, tiles.query_step), 1},
        rows{a.tiles_of_keys, tiles.key_rows, tiles.key_step, rounded_up(S, tiles.key_step), rows_of_box};
    a.k_tile = keys.view("k_of_dq", a.k), a.v_tile = keys.view("v_of_dq", a.v);
    a.q_tile = rows.view("q_tile", a.q), a.g_tile = rows.view("g_tile", a.g);
    a.lse_tile = rows.view_of_numbers("lse_tile", a.lse_of_keys);
    a.delta_tile = rows.view_of_numbers("delta_tile", a.delta);
    a.of_queries = scores_of_queries(shape, a, keys);
    a.of_keys = scores_of_keys(shape, a, rows, "_of_dk");
    a.of_values = tiles.passes.together ? a.of_keys : scores_of_keys(shape, a, rows, "_of_dv");
    a.dq = compute("dq", {S, H, D}, [&](Expr i, Expr h, Expr x) {
        const Axis j = keys.axis("j", i);
        const Expr total = sum(a.of_queries.ds(h, i, j) * cast(f32, a.k_tile(keys.tile(i), j, h / shape.group, x)), j);
        return cast(shape.type, total * scale_of(shape));
    });
    // Over the rows of a tile, of all heads that share those of keys.
    auto of_heads = [&](const Expr& j, const Expr& h, const Tensor& weights, const Tensor& view, const Expr& x) {
        const Axis i = rows.axis("i", j), in_group = reduce_axis("h_of_group", shape.group);
        const Expr head = shape.group == 1 ? h : h * shape.group + in_group;
        const Expr term = weights(head, i, j) * cast(f32, view(rows.tile(j), i, head, x));
        return shape.group == 1 ? sum(term, i) : sum(term, {in_group, i});
    };
    a.dk = compute("dk", {N, H / G, D}, [&](Expr j, Expr h, Expr x) {
        return cast(shape.type, of_heads(j, h, a.of_keys.ds, a.q_tile, x) * scale_of(shape));
    });
    a.dv = compute("dv", {N, H / G, E}, [&](Expr j, Expr h, Expr x) {
        return cast(shape.type, of_heads(j, h, a.of_values.p, a.g_tile, x));
    });
    return a;
}

Tensor with_varlen_gradients(const VarlenAttention& attention, const VarlenShape& shape, const VarlenTiles& forward,
                             const GradientTiles& tiles, std::source_location where) {
    if (forward.rows != tiles.query_rows)
        throw_error(Error,
                    "varlen attention: its tables are of {} rows a tile, those of gradients of {}; give both "
                    "the same",
                    forward.rows, tiles.query_rows);
    const VarlenAttention& a = attention;
    return with_gradient(
        a.o, {a.q, a.k, a.v},
        [=](const Tensor& o, const Tensor& adjoint) {
            const Shape extents(o.shape().begin(), o.shape().end());
            const Tensor g =
                compute("g_of_o", extents, [&](Expr i, Expr h, Expr e) { return cast(shape.type, adjoint(i, h, e)); });
            const VarlenGradients made = declare_varlen_gradients(
                shape, tiles,
                {.q = a.q, .k = a.k, .v = a.v, .g = g, .o = o, .lse = a.lse, .tiles = a.tiles, .seen = a.seen});
            return std::vector<Tensor>{made.dq, made.dk, made.dv};
        },
        where);
}

namespace {

class VarlenGradientSchedule {
public:
    VarlenGradientSchedule(const VarlenGradients& gradients, const VarlenShape& shape, const GradientTiles& tiles,
                           const Target& target, std::source_location where)
        : shape_(shape),
          tiles_(tiles),
          a_(gradients),
          s_({gradients.dq, gradients.dk, gradients.dv}, target),
          where_(where) {}

    Schedule run() {
        schedule_delta();
        if (!a_.lse_of_keys.same(a_.lse)) schedule_each_element(s_, a_.lse_of_keys, threads_of_delta, where_);
        schedule_queries();
        schedule_keys();
        if (!tiles_.passes.together) schedule_values();
        return std::move(s_);
    }

private:
    /// A row is summed by threads side by side, each with a few neighbours of it.
    void schedule_delta() {
        const auto [h, i] = s_.loops<2>(a_.delta, where_);
        const Loop rows = s_.fuse({h, i}, "all_rows", where_);
        int64_t lanes = 1;
        while (lanes < divided(shape_.width, piece) && lanes < 32) lanes *= 2;
        auto [block, row] = s_.split(rows, threads_of_delta / lanes, Tail::Mask, {"row_block", "row"}, where_);
        auto [part, in_part] = s_.split(s_.reduce(a_.delta), lanes * piece, Tail::Mask, {"part", "in_part"}, where_);
        auto [lane, element] = s_.split(in_part, piece, {"lane", "element"}, where_);
        s_.bind(block, grid.x, where_);
        s_.bind(row, thread, where_);
        s_.bind(lane, thread, where_);
        s_.unroll(element, where_);
    }

    GradientNest nest_of(const Tensor& gradient, int64_t rows, int64_t step_extent, bool of_keys) {
        auto [i, h, columns] = s_.loops<3>(gradient, where_);
        const bool of_group = of_keys && shape_.group > 1;
        const int64_t width = as_constant(s_.extent(columns)).value();
        auto [x_tile, x] = s_.split(columns, padded_head(width), Tail::Mask, {"x_tile", "x"}, where_);
        auto [block, in_block] = s_.split(i, rows, Tail::Mask, {"block", "in_block"}, where_);
        auto [group, row] = s_.split(in_block, rows_of_unit, {"group", "row"}, where_);
        auto [step, term] = s_.split(s_.reduce(gradient, of_group ? 1 : 0), step_extent, {"step", "term"}, where_);
        std::vector<Loop> order{h, block, x_tile, group};
        if (of_group) order.push_back(s_.reduce(gradient, 0));
        order.insert(order.end(), {step, row, x, term});
        s_.order(order, where_);
        // Of causal sequences the last rows see the most keys, and the first keys are seen by the most rows.
        const int64_t blocks = as_constant(s_.extent(h)).value() * as_constant(s_.extent(block)).value();
        s_.persistent({h, block}, {.blocks = static_cast<int>(blocks), .longest_first = !of_keys}, where_);
        s_.bind(group, warpgroup, where_);
        return {block, group, step, row, x, term};
    }

    /// The tile of scores or of their adjoints under a step, in registers; of keys by rows if `transposed`.
    MmaLoops product_under(const Loop& step, const Tensor& product, int64_t terms, bool transposed) {
        keep(product, step);
        auto [h, i, j] = s_.loops<3>(product, where_);
        auto [k_tile, k] = s_.split(s_.reduce(product), padded_head(terms), Tail::Mask, {"k_tile", "k"}, where_);
        const Loop m = transposed ? j : i, n = transposed ? i : j;
        s_.order({h, k_tile, m, n, k}, where_);
        return {.m = m, .n = n, .k = k};
    }

    void keep(const Tensor& made, const Loop& step) {
        s_.at(made, step, where_);
        s_.set_memory(made, Memory::Registers, where_);
    }
    /// What a gradient reads of it is rounded to the operands' type, in registers.
    void round_for(const Tensor& gradient, const Tensor& made, const Loop& step) {
        s_.round_to(s_.stage(gradient, made, Memory::Registers, step, where_), shape_.type, where_);
    }
    Stage load(const std::vector<StageRef>& readers, const Tensor& operand, const Loop& loop) {
        return s_.stage(readers, operand, Memory::Shared, loop, where_);
    }
    void finish(const GradientNest& n, const Tensor& gradient, const std::vector<StageRef>& loaded, int64_t rows) {
        s_.pipeline(n.step, {.stages = tiles_.stages}, where_);
        s_.roles(loading_roles(s_.target(), loaded, gradient, {.warpgroups = rows / rows_of_unit}), where_);
    }

    void schedule_queries() {
        const VarlenScores& of = a_.of_queries;
        const GradientNest n = nest_of(a_.dq, tiles_.query_rows, tiles_.query_step, false);
        keep(of.ds, n.step);
        keep(of.p, n.step);
        round_for(a_.dq, of.ds, n.step);
        s_.mma(a_.dq, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        const MmaLoops of_s = product_under(n.step, of.s, shape_.depth, false),
                       of_dp = product_under(n.step, of.dp, shape_.width, false);
        const std::vector<StageRef> loaded{load({of.s}, a_.q, n.tile), load({of.dp}, a_.g, n.tile),
                                           load({of.s, a_.dq}, a_.k_tile, n.step), load({of.dp}, a_.v_tile, n.step)};
        for (const Tensor& view : {a_.k_tile, a_.v_tile}) s_.inline_stage(view, where_);
        s_.stage(of.p, a_.lse, Memory::Registers, n.group, where_);
        s_.stage(of.p, a_.seen, Memory::Registers, n.group, where_);
        s_.stage(of.ds, a_.delta, Memory::Registers, n.group, where_);
        s_.mma(of.s, wgmma, of_s, where_);
        s_.mma(of.dp, wgmma, of_dp, where_);
        finish(n, a_.dq, loaded, tiles_.query_rows);
    }

    /// Views of rows, once all kernels that read them have their copies.
    void inline_rows() {
        for (const Tensor& view : {a_.q_tile, a_.g_tile, a_.lse_tile}) s_.inline_stage(view, where_);
    }
    /// Of keys, by threads that know which rows see theirs.
    void make_scores(const VarlenScores& of, const GradientNest& n, const MmaLoops& of_s) {
        s_.stage(of.p, a_.seen_of_keys, Memory::Registers, n.group, where_);
        s_.mma(of.s, wgmma, of_s, where_);
    }

    void schedule_keys() {
        const VarlenScores& of = a_.of_keys;
        const bool together = tiles_.passes.together;
        const GradientNest n = nest_of(a_.dk, tiles_.key_rows, tiles_.key_step, true);
        if (together) s_.stream({a_.dv, a_.dk}, n.step, where_);
        keep(of.ds, n.step);
        keep(of.p, n.step);
        if (together) round_for(a_.dv, of.p, n.step);
        round_for(a_.dk, of.ds, n.step);
        s_.mma(a_.dk, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        if (together) {
            auto [j, h, x] = s_.loops<3>(a_.dv, where_);
            const Loop term = s_.all_loops(a_.dv).back();
            if (shape_.group > 1)
                s_.order({h, s_.reduce(a_.dv, 0), j, x, term}, where_);
            else
                s_.order({h, j, x, term}, where_);
            s_.mma(a_.dv, wgmma, {.m = j, .n = x, .k = term}, where_);
        }
        const MmaLoops of_s = product_under(n.step, of.s, shape_.depth, true),
                       of_dp = product_under(n.step, of.dp, shape_.width, true);
        std::vector<StageRef> of_g{of.dp};
        if (together) of_g.emplace_back(a_.dv);
        const std::vector<StageRef> loaded{
            load({of.s}, a_.k, n.tile),    load({of.dp}, a_.v, n.tile),       load({of.s, a_.dk}, a_.q_tile, n.step),
            load(of_g, a_.g_tile, n.step), load({of.p}, a_.lse_tile, n.step), load({of.ds}, a_.delta_tile, n.step)};
        if (together) inline_rows();
        s_.inline_stage(a_.delta_tile, where_);
        make_scores(of, n, of_s);
        s_.mma(of.dp, wgmma, of_dp, where_);
        finish(n, a_.dk, loaded, tiles_.key_rows);
    }

    void schedule_values() {
        const VarlenScores& of = a_.of_values;
        const GradientNest n = nest_of(a_.dv, tiles_.key_rows, tiles_.key_step, true);
        keep(of.p, n.step);
        round_for(a_.dv, of.p, n.step);
        s_.mma(a_.dv, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        const MmaLoops of_s = product_under(n.step, of.s, shape_.depth, true);
        const std::vector<StageRef> loaded{load({of.s}, a_.k, n.tile), load({of.s}, a_.q_tile, n.step),
                                           load({a_.dv}, a_.g_tile, n.step), load({of.p}, a_.lse_tile, n.step)};
        inline_rows();
        make_scores(of, n, of_s);
        finish(n, a_.dv, loaded, tiles_.key_rows);
    }

    const VarlenShape& shape_;
    const GradientTiles& tiles_;
    const VarlenGradients& a_;
    Schedule s_;
    std::source_location where_;
};

}  // namespace

Schedule varlen_gradients_schedule(const VarlenGradients& gradients, const VarlenShape& shape,
                                   const GradientTiles& tiles, const Target& target, std::source_location where) {
    return VarlenGradientSchedule(gradients, shape, tiles, target, where).run();
}

GradientTiles varlen_gradient_tiles(const VarlenShape& shape, const Target& target) {
    const AttentionShape padded{.batch = 1,
                                .heads = shape.heads,
                                .rows = shape.rows,
                                .keys = shape.keys,
                                .depth = shape.depth,
                                .width = shape.width,
                                .group = shape.group,
                                .type = shape.type};
    GradientTiles tiles = gradient_tiles(padded, target, false, 0);
    tiles.query_rows = varlen_tiles(shape).rows;
    tiles.key_rows = GradientTiles().key_rows;
    // As of gradient_tiles: a single tile that is not full.
    if (shape.heads == shape.group && shape.keys <= tiles.key_rows && shape.keys % rows_of_unit != 0)
        tiles.passes.together = false;
    return tiles;
}

double varlen_gradients_flops(const VarlenShape& shape, const Offsets& of_rows, const Offsets& of_keys, bool causal) {
    // Of queries and keys: scores, dk and dq. Of values: dp and dv.
    return varlen_flops(shape, of_rows, of_keys, causal) / as_double(shape.depth + shape.width) *
           as_double(3 * shape.depth + 2 * shape.width);
}

std::optional<NamedVarlenGradients> parse_varlen_gradients(const std::string& name) {
    static const std::regex form(
        "attention_varlen_gradients(_.*?)(?:_tile(\\d{1,4})x(\\d{1,4})q(\\d{1,4})x(\\d{1,4})s([1-9])(a)?)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    const auto forward = parse_varlen("attention_varlen" + match[1].str());
    if (!forward || forward->tiles) return {};
    NamedVarlenGradients named{.shape = forward->shape, .tiles = {}};
    if (match[2].matched) {
        named.tiles = GradientTiles{.key_rows = std::stoll(match[2]),
                                    .key_step = std::stoll(match[3]),
                                    .query_rows = std::stoll(match[4]),
                                    .query_step = std::stoll(match[5]),
                                    .stages = std::stoi(match[6]),
                                    .passes = {.together = !match[7].matched}};
        for (int64_t rows : {named.tiles->key_rows, named.tiles->query_rows})
            if (rows % rows_of_unit != 0 || rows > 3 * rows_of_unit || rows == 0) return {};
        for (int64_t step : {named.tiles->key_step, named.tiles->query_step})
            if (step % 16 != 0 || step == 0) return {};
    }
    return named;
}

}  // namespace tw::schedules

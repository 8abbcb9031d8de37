// What gradients of attention of packed sequences are.
#include <algorithm>
#include <cmath>

#include "dsl/differentiate.h"
#include "schedules/varlen_gradients.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

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
WalkedScores scores_of_queries(const VarlenShape& shape, const VarlenGradients& a, const AttentionRules& rules,
                               const Walk& through) {
    const auto& [S, N, H, D, E, G, type] = shape;
    using Indices = ScoresAt::Indices;  // head, row, key
    const Axis d = reduce_axis("d", D), w = reduce_axis("w", E);
    auto key_of = [&](const Tensor& view, const Indices& at, const Axis& x) {
        return cast(f32, view(through.tile(at[1]), at[2], at[0] / shape.group, x));
    };
    WalkedScores of = declare_walked_scores(
        D, rules,
        {.suffix = "_of_dq",
         .extents = {H, S, through.most},
         .place = [&](const Indices& at) { return place_of_row(a.places, at[0], at[1], at[2]); },
         .score = [&](const Indices& at) { return sum(cast(f32, a.q(at[1], at[0], d)) * key_of(a.k_tile, at, d), d); },
         .of_values =
             [&](const Indices& at) { return sum(cast(f32, a.g(at[1], at[0], w)) * key_of(a.v_tile, at, w), w); },
         .delta = [&](const Indices& at) { return a.delta(at[0], at[1]); },
         .is_seen = [&](const Indices& at) { return is_seen(a.seen, at[1], at[2]); },
         .row_numbers =
             [&](const Indices& at) {
                 return numbers_at(a.row_numbers, &RowNumber::of_queries, {at[0], at[1]});
             }});
    of.kept = {a.seen, a.places};
    return of;
}

/// Over keys and the rows of their tiles.
WalkedScores scores_of_keys(const VarlenShape& shape, const VarlenGradients& a, const AttentionRules& rules,
                            const Walk& through, const std::string& suffix) {
    const auto& [S, N, H, D, E, G, type] = shape;
    using Indices = ScoresAt::Indices;  // head, row, key
    const Axis d = reduce_axis("d", D), w = reduce_axis("w", E);
    auto row_of = [&](const Tensor& view, const Indices& at, const Axis& x) {
        return cast(f32, view(through.tile(at[2]), at[1], at[0], x));
    };
    auto key_of = [&](const Tensor& keys, const Indices& at, const Axis& x) {
        return cast(f32, keys(at[2], at[0] / shape.group, x));
    };
    WalkedScores of = declare_walked_scores(
        D, rules,
        {.suffix = suffix,
         .extents = {H, through.most, N},
         .place = [&](const Indices& at) { return place_of_key(a.places_of_keys, at[0], at[1], at[2]); },
         .score = [&](const Indices& at) { return sum(row_of(a.q_tile, at, d) * key_of(a.k, at, d), d); },
         .of_values = [&](const Indices& at) { return sum(row_of(a.g_tile, at, w) * key_of(a.v, at, w), w); },
         .delta = [&](const Indices& at) { return a.delta_tile(through.tile(at[2]), at[0], at[1]); },
         .is_seen = [&](const Indices& at) { return is_seen(a.seen_of_keys, at[2], at[1]); },
         .row_numbers =
             [&](const Indices& at) {
                 return numbers_at(a.row_numbers, &RowNumber::tile, {through.tile(at[2]), at[0], at[1]});
             }});
    of.kept = {a.seen_of_keys, a.places_of_keys};
    return of;
}

/// What a score without a value takes of a row's softmax, its weights' sum being 1, times what that is worth there.
Tensor gradient_of_sinks(const VarlenShape& shape, const VarlenGradients& a, const Tensor& sinks) {
    const Axis i = reduce_axis("of_row", shape.rows);
    return compute("d_" + sinks.name(), {shape.heads},
                   [&](Expr h) { return -sum(exp2(sinks(h) * to_base_2 - a.lse(h, i)) * a.delta(h, i), i); });
}

void declare_inputs(const VarlenShape& shape, const GradientTiles& tiles, const VarlenSaved& saved,
                    const ScoreRule& rule, VarlenGradients& a) {
    const auto& [S, N, H, D, E, G, type] = shape;
    auto given = [](const Tensor& tensor, const std::string& name, Type of, const Shape& extents) {
        return operand_of_attention(tensor, name, of, extents);
    };
    auto table = [](const Tensor& tensor, const std::string& name, const Shape& extents, TilesOf side,
                    int64_t of_tile) {
        const char* of = side == TilesOf::Rows ? "rows" : "keys";
        const std::string made_by =
            fmt::format("varlen_tables, or declare_varlen_tables, of tiles of {} {}", of_tile, of);
        return table_of_attention(tensor, name, extents, made_by);
    };
    auto of_rows = [&](const Tensor& tensor, const std::string& name, const Shape& extents) {
        return table(tensor, name, extents, TilesOf::Rows, tiles.query_rows);
    };
    auto of_keys = [&](const Tensor& tensor, const std::string& name, const Shape& extents) {
        return table(tensor, name, extents, TilesOf::Keys, tiles.key_rows);
    };
    a.q = given(saved.q, "q", type, {S, H, D});
    a.k = given(saved.k, "k", type, {N, H / G, D});
    a.v = given(saved.v, "v", type, {N, H / G, E});
    a.g = given(saved.g, "g", type, {S, H, E});
    a.o = given(saved.o, "o", type, {S, H, E});
    a.lse = given(saved.lse, "lse", f32, {H, S});
    a.tiles = of_rows(saved.tiles, "tiles", {divided(S, tiles.query_rows), 2});
    a.seen = of_rows(saved.seen, "seen", {S, 2});
    a.places = of_rows(saved.places, "places", {S, numbers_of_place});
    a.tiles_of_keys = of_keys(saved.tiles_of_keys, "tiles_of_keys", {divided(N, tiles.key_rows), 2});
    a.seen_of_keys = of_keys(saved.seen_of_keys, "seen_of_keys", {N, 2});
    a.places_of_keys = of_keys(saved.places_of_keys, "places_of_keys", {N, numbers_of_place});
    // As many as boxes of them want; those behind the last row are its own.
    const int64_t with_more = rounded_up(S, rows_of_box);
    auto there = [&](const Expr& i) { return with_more == shape.rows ? i : min(i, shape.rows - 1); };
    const Axis e = reduce_axis("e", E);
    a.delta = compute("delta", {H, with_more}, [&](Expr h, Expr i) {
        return sum(cast(f32, a.g(there(i), h, e)) * cast(f32, a.o(there(i), h, e)), e);
    });
    a.row_numbers = row_numbers(a.lse, softmax_of(rule, saved.softmax, given, {H, S}), rule != nullptr, "");
}

}  // namespace

VarlenGradients declare_varlen_gradients(const VarlenShape& shape, const GradientTiles& tiles, const VarlenSaved& saved,
                                         const AttentionRules& rules, std::source_location where) {
    CalledFrom caller(where);
    check_varlen(shape, where);
    require_gradient_tiles(tiles, where);
    check_sinks(shape.heads, rules.sinks);
    const auto& [S, N, H, D, E, G, type] = shape;
    user_check(!tiles.passes.kept && !tiles.passes.added, where,
               "varlen attention: adjoints of scores cannot be kept or added up; declare gradients without");
    VarlenGradients a;
    declare_inputs(shape, tiles, saved, rules.score, a);
    if (rules.sinks.defined()) a.d_sinks = gradient_of_sinks(shape, a, rules.sinks);
    const Walk keys{a.tiles, tiles.query_rows, tiles.query_step, rounded_up(N, tiles.query_step), 1},
        rows{a.tiles_of_keys, tiles.key_rows, tiles.key_step, rounded_up(S, tiles.key_step), rows_of_box};
    a.k_tile = keys.view("k_of_dq", a.k), a.v_tile = keys.view("v_of_dq", a.v);
    a.q_tile = rows.view("q_tile", a.q), a.g_tile = rows.view("g_tile", a.g);
    for (RowNumber& each : a.row_numbers) each.tile = rows.view_of_numbers(each.name + "_tile", each.of_keys);
    a.delta_tile = rows.view_of_numbers("delta_tile", a.delta);
    a.of_queries = scores_of_queries(shape, a, rules, keys);
    a.of_keys = scores_of_keys(shape, a, rules, rows, "_of_dk");
    a.of_values = tiles.passes.together ? a.of_keys : scores_of_keys(shape, a, rules, rows, "_of_dv");
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
        return cast(shape.type, of_heads(j, h, a.of_values.w, a.g_tile, x));
    });
    return a;
}

Tensor with_varlen_gradients(const VarlenAttention& attention, const VarlenShape& shape, const VarlenTiles& forward,
                             const GradientTiles& tiles, std::source_location where) {
    user_check(forward.rows == tiles.query_rows, where,
               "varlen attention: its tables are of {} rows a tile, those of gradients of {}; give both the same",
               forward.rows, tiles.query_rows);
    const VarlenAttention& a = attention;
    std::vector<Tensor> inputs{a.q, a.k, a.v};
    if (a.rules.sinks.defined()) inputs.push_back(a.rules.sinks);
    auto function = [=](const Tensor& o, const Tensor& adjoint) {
        const Shape extents(o.shape().begin(), o.shape().end());
        const Tensor g =
            compute("g_of_o", extents, [&](Expr i, Expr h, Expr e) { return cast(shape.type, adjoint(i, h, e)); });
        VarlenSaved saved{.q = a.q, .k = a.k, .v = a.v, .g = g, .o = o, .lse = a.lse, .softmax = a.softmax};
        saved.tiles = a.tiles, saved.seen = a.seen, saved.places = a.places;
        const VarlenGradients made = declare_varlen_gradients(shape, tiles, saved, a.rules, where);
        std::vector<Tensor> all{made.dq, made.dk, made.dv};
        if (made.d_sinks.defined()) all.push_back(made.d_sinks);
        return all;
    };
    return with_gradient(a.o, inputs, function, where);
}

}  // namespace tw::schedules

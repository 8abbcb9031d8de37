// What gradients of attention by ranges are.
#include <cmath>

#include "dsl/differentiate.h"
#include "schedules/ranged_gradients.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t numbers_of_box = 4;  // f32, of 16 bytes

using Indices = ScoresAt::Indices;  // batch, head, row, key

/// Of which tiles go through what, and what rules make of it.
struct Side {
    const AttentionShape& shape;
    const AttentionRules& rules;
    const RangedGradients& a;
    const RangeWalk& walk;
    std::string suffix;
};

/// Has rules read what a thread keeps, and what steps bring, by views, which become those of the scores.
WalkedScores scores_by_views(const Side& side, ScoresAt at, size_t own, size_t other,
                             const std::function<Expr(const Indices&)>& number_of_other) {
    RangeViews brought;
    LineInputs lines;
    at.by_views = [&](const Expr& value, const Indices& e) {
        const ScorePlace place = at.place(e);
        const Expr seen = with_range_views(value, side.walk, place, e[own], number_of_other(e), e[other],
                                           (other == 3 ? "_of_keys" : "_of_rows") + side.suffix, brought);
        return with_line_inputs(seen, place, lines, side.suffix);
    };
    WalkedScores of = declare_walked_scores(side.shape.depth, side.rules, at);
    for (const auto& [input, view] : brought) of.brought.push_back(view);
    for (const LineInput& line : own == 2 ? lines.of_rows : lines.of_keys) of.kept.push_back(line.view);
    return of;
}

/// Over rows and the keys of their tiles.
WalkedScores scores_of_queries(const Side& side) {
    const AttentionShape& shape = side.shape;
    const RangedGradients& a = side.a;
    const RangeWalk& walk = side.walk;
    const Axis d = reduce_axis("d", shape.depth), w = reduce_axis("w", shape.width);
    auto key = [&](const Indices& at) { return walk.first(at[0], walk.tile(at[2])) + at[3]; };
    auto key_of = [&](const Tensor& view, const Indices& at, const Axis& x) {
        return cast(f32, view(at[0], walk.tile(at[2]), at[3], at[1] / shape.group, x));
    };
    auto row_of = [&](const Tensor& rows, const Indices& at, const Axis& x) {
        return cast(f32, shape.at(rows, at[0], at[2], at[1], x));
    };
    const ScoresAt at{.suffix = side.suffix,
                      .extents = {shape.batch, shape.heads, shape.rows, walk.most()},
                      .place =
                          [&](const Indices& e) {
                              return ScorePlace{e[0], e[1], e[2], key(e), shape.position(e[2])};
                          },
                      .score = [&](const Indices& e) { return sum(row_of(a.q, e, d) * key_of(a.k_tile, e, d), d); },
                      .of_values = [&](const Indices& e) { return sum(row_of(a.g, e, w) * key_of(a.v_tile, e, w), w); },
                      .delta = [&](const Indices& e) { return a.delta(e[0], e[1], e[2]); },
                      .is_seen =
                          [&](const Indices& e) {
                              const Expr is_there = key(e) < shape.keys;
                              return shape.causal ? is_there && key(e) <= shape.position(e[2]) : is_there;
                          },
                      .row_numbers =
                          [&](const Indices& e) {
                              return numbers_at(a.row_numbers, &RowNumber::of_queries, {e[0], e[1], e[2]});
                          }};
    return scores_by_views(side, at, 2, 3, key);
}

/// Over keys and the rows of their tiles.
WalkedScores scores_of_keys(const Side& side) {
    const AttentionShape& shape = side.shape;
    const RangedGradients& a = side.a;
    const RangeWalk& walk = side.walk;
    const Axis d = reduce_axis("d", shape.depth), w = reduce_axis("w", shape.width);
    auto row = [&](const Indices& at) { return walk.first(at[0], walk.tile(at[3])) + at[2]; };
    auto row_of = [&](const Tensor& view, const Indices& at, const Axis& x) {
        return cast(f32, view(at[0], walk.tile(at[3]), at[2], at[1], x));
    };
    auto key_of = [&](const Tensor& keys, const Indices& at, const Axis& x) {
        return cast(f32, shape.at(keys, at[0], at[3], at[1] / shape.group, x));
    };
    const ScoresAt at{.suffix = side.suffix,
                      .extents = {shape.batch, shape.heads, walk.most(), shape.keys},
                      .place =
                          [&](const Indices& e) {
                              return ScorePlace{e[0], e[1], row(e), e[3], shape.position(row(e))};
                          },
                      .score = [&](const Indices& e) { return sum(row_of(a.q_tile, e, d) * key_of(a.k, e, d), d); },
                      .of_values = [&](const Indices& e) { return sum(row_of(a.g_tile, e, w) * key_of(a.v, e, w), w); },
                      .delta = [&](const Indices& e) { return a.delta_tile(e[0], walk.tile(e[3]), e[1], e[2]); },
                      .is_seen =
                          [&](const Indices& e) {
                              // Whole steps of whole tiles of rows have none behind the last.
                              const bool whole = shape.rows % walk.step == 0 && walk.multiple % walk.step == 0;
                              const Expr is_there = whole ? Expr(true) : row(e) < shape.rows;
                              return shape.causal ? is_there && e[3] <= shape.position(row(e)) : is_there;
                          },
                      .row_numbers =
                          [&](const Indices& e) {
                              return numbers_at(a.row_numbers, &RowNumber::tile, {e[0], walk.tile(e[3]), e[1], e[2]});
                          }};
    return scores_by_views(side, at, 3, 2, row);
}

/// What a score without a value takes of a row's softmax, its weights' sum being 1, times what that is worth there.
Tensor gradient_of_sinks(const AttentionShape& shape, const RangedGradients& a, const Tensor& sinks,
                         const std::string& suffix) {
    const Axis b = reduce_axis("of_batch", shape.batch), i = reduce_axis("of_row", shape.rows);
    return compute("d_" + sinks.name() + suffix, {shape.heads}, [&](Expr h) {
        const Expr share = exp2(sinks(h) * std::log2(std::exp(1.0)) - a.lse(b, h, i));
        return -sum(share * a.delta(b, h, i), {b, i});
    });
}

void declare_inputs(const AttentionShape& shape, const GradientTiles& tiles, const RangedSaved& saved,
                    const ScoreRule& rule, RangedGradients& a) {
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    auto named = [&](const char* name) { return name + saved.suffix; };
    auto given = [&](const Tensor& tensor, const char* name, Type of, const Shape& extents) {
        return operand_of_attention(tensor, named(name), of, extents);
    };
    a.q = given(saved.q, "q", type, shape.of_tokens(S, H, D));
    a.k = given(saved.k, "k", type, shape.of_tokens(N, H / G, D));
    a.v = given(saved.v, "v", type, shape.of_tokens(N, H / G, E));
    a.g = given(saved.g, "g", type, shape.of_tokens(S, H, E));
    a.o = given(saved.o, "o", type, shape.of_tokens(S, H, E));
    a.lse = given(saved.lse, "lse", f32, {B, H, S});
    a.ranges = table_of_attention(saved.ranges, named("ranges"), {B, divided(S, tiles.query_rows), 2},
                                  fmt::format("declare_key_ranges, of tiles of {} rows,", tiles.query_rows));
    if (!saved.ranges_of_keys.defined())
        a.of_tiles = declare_ranges_of_keys(shape, a.ranges, tiles.query_rows, tiles.key_rows);
    a.ranges_of_keys =
        saved.ranges_of_keys.defined()
            ? table_of_attention(saved.ranges_of_keys, "ranges_of_keys", {B, divided(N, tiles.key_rows), 2},
                                 fmt::format("declare_ranges_of_keys, of tiles of {} rows and {} keys,",
                                             tiles.query_rows, tiles.key_rows))
            : a.of_tiles.ranges;
    // As many as boxes of them want; those behind the last row are its own.
    const int64_t with_more = rounded_up(S, numbers_of_box);
    auto there = [&](const Expr& i) { return with_more == shape.rows ? i : min(i, shape.rows - 1); };
    const Axis e = reduce_axis("e", E);
    a.delta = compute(named("delta"), {B, H, with_more}, [&](Expr b, Expr h, Expr i) {
        return sum(cast(f32, shape.at(a.g, b, there(i), h, e)) * cast(f32, shape.at(a.o, b, there(i), h, e)), e);
    });
    a.row_numbers = row_numbers(a.lse, softmax_of(rule, saved.softmax, given, {B, H, S}),
                                rule || shape.has_empty_rows(), saved.suffix);
}

/// Of tokens, [batch, tokens, heads, x] in the order of the shape.
template <class Element>
Tensor of_tokens(const AttentionShape& shape, const std::string& name, const Shape& extents, const Element& element) {
    return compute(name, extents, [&](Expr b, Expr y, Expr z, Expr x) {
        return cast(shape.type, shape.heads_first ? element(b, z, y, x) : element(b, y, z, x));
    });
}

void declare_sums(const AttentionShape& shape, const RangeWalk& keys, const RangeWalk& rows, const std::string& suffix,
                  RangedGradients& a) {
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    const double scale = 1 / std::sqrt(as_double(D));
    a.dq = of_tokens(shape, "dq" + suffix, shape.of_tokens(S, H, D), [&](Expr b, Expr i, Expr h, Expr x) {
        const Axis j = keys.axis("j", b, i);
        const Expr key = a.k_tile(b, keys.tile(i), j, h / shape.group, x);
        return sum(a.of_queries.ds(b, h, i, j) * cast(f32, key), j) * scale;
    });
    // Over the rows of a tile, of all heads that share those of keys.
    auto of_heads = [&](const Expr& b, const Expr& j, const Expr& h, const Tensor& weights, const Tensor& view,
                        const Expr& x) {
        const Axis i = rows.axis("i", b, j), in_group = reduce_axis("h_of_group", shape.group);
        const Expr head = shape.group == 1 ? h : h * shape.group + in_group;
        const Expr term = weights(b, head, i, j) * cast(f32, view(b, rows.tile(j), i, head, x));
        return shape.group == 1 ? sum(term, i) : sum(term, {in_group, i});
    };
    a.dk = of_tokens(shape, "dk" + suffix, shape.of_tokens(N, H / G, D), [&](Expr b, Expr j, Expr h, Expr x) {
        return of_heads(b, j, h, a.of_keys.ds, a.q_tile, x) * scale;
    });
    a.dv = of_tokens(shape, "dv" + suffix, shape.of_tokens(N, H / G, E),
                     [&](Expr b, Expr j, Expr h, Expr x) { return of_heads(b, j, h, a.of_values.w, a.g_tile, x); });
}

}  // namespace

RangedGradients declare_ranged_gradients(const AttentionShape& shape, const GradientTiles& tiles,
                                         const AttentionRules& rules, const RangedSaved& saved,
                                         std::source_location where) {
    CalledFrom caller(where);
    check_attention(shape, where);
    require_gradient_tiles(tiles, where);
    check_sinks(shape.heads, rules.sinks);
    user_check(!tiles.passes.kept && !tiles.passes.added, where,
               "attention by ranges: adjoints of scores are neither kept nor added up; declare gradients without");
    RangedGradients a;
    declare_inputs(shape, tiles, saved, rules.score, a);
    if (rules.sinks.defined()) a.d_sinks = gradient_of_sinks(shape, a, rules.sinks, saved.suffix);
    const RangeWalk keys{a.ranges, tiles.query_rows, tiles.query_step, shape.keys, keys_of_box},
        rows{a.ranges_of_keys, tiles.key_rows, tiles.key_step, shape.rows, tiles.query_rows};
    auto named = [&](const char* name) { return name + saved.suffix; };
    a.k_tile = keys.view(shape, named("k_of_dq"), a.k), a.v_tile = keys.view(shape, named("v_of_dq"), a.v);
    a.q_tile = rows.view(shape, named("q_tile"), a.q), a.g_tile = rows.view(shape, named("g_tile"), a.g);
    for (RowNumber& each : a.row_numbers)
        each.tile = rows.view_of_numbers(each.name + "_tile" + saved.suffix, each.of_keys);
    a.delta_tile = rows.view_of_numbers(named("delta_tile"), a.delta);
    a.of_queries = scores_of_queries({shape, rules, a, keys, named("_of_dq")});
    a.of_keys = scores_of_keys({shape, rules, a, rows, named("_of_dk")});
    a.of_values = tiles.passes.together ? a.of_keys : scores_of_keys({shape, rules, a, rows, named("_of_dv")});
    declare_sums(shape, keys, rows, saved.suffix, a);
    return a;
}

Tensor with_ranged_gradients(const RangedAttention& attention, const AttentionShape& shape, const VarlenTiles& forward,
                             const GradientTiles& tiles, std::source_location where) {
    user_check(forward.rows == tiles.query_rows, where,
               "attention by ranges: its table is of {} rows a tile, that of gradients of {}; give both the same",
               forward.rows, tiles.query_rows);
    const Attention& a = attention.of;
    const AttentionRules& rules = attention.rules;
    std::vector<Tensor> inputs{a.q, a.k, a.v};
    if (rules.sinks.defined()) inputs.push_back(rules.sinks);
    auto function = [=, ranges = attention.ranges](const Tensor& o, const Tensor& adjoint) {
        const Shape extents(o.shape().begin(), o.shape().end());
        const Tensor g = compute("g_of_o" + a.suffix, extents,
                                 [&](Expr b, Expr y, Expr z, Expr e) { return cast(shape.type, adjoint(b, y, z, e)); });
        const RangedGradients made = declare_ranged_gradients(shape, tiles, rules,
                                                              {.q = a.q,
                                                               .k = a.k,
                                                               .v = a.v,
                                                               .g = g,
                                                               .o = o,
                                                               .lse = a.lse,
                                                               .softmax = a.softmax,
                                                               .ranges = ranges,
                                                               .suffix = a.suffix},
                                                              where);
        std::vector<Tensor> all{made.dq, made.dk, made.dv};
        if (made.d_sinks.defined()) all.push_back(made.d_sinks);
        return all;
    };
    return with_gradient(a.o, inputs, function, where);
}

}  // namespace tw::schedules

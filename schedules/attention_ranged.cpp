#include "schedules/attention_ranged.h"

#include <algorithm>
#include <cmath>

#include "schedules/loading_roles.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64;

}  // namespace

VarlenTiles ranged_tiles(const AttentionShape& shape) {
    return varlen_tiles({.rows = shape.rows,
                         .keys = shape.keys,
                         .heads = shape.heads,
                         .depth = shape.depth,
                         .width = shape.width,
                         .group = shape.group,
                         .type = shape.type});
}

RangedAttention declare_ranged_attention(const AttentionShape& shape, const VarlenTiles& tiles,
                                         const AttentionRules& rules, const AttentionOperands& operands,
                                         std::source_location where) {
    CalledFrom caller(where);
    require_sizes("tiles of ranges",
                  {{"rows", tiles.rows}, {"keys", tiles.keys}, {"stages", tiles.stages}, {"heads", tiles.heads}},
                  where);
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    check_attention(shape);
    const Attention whole = declare_attention(shape, {}, false, {}, rules.sinks, operands);
    auto named = [&](const char* name) { return name + operands.suffix; };
    RangedAttention r;
    Attention& a = r.of;
    a.q = whole.q, a.k = whole.k, a.v = whole.v, a.suffix = whole.suffix;
    r.ranges = input(named("ranges"), i32, {B, divided(S, tiles.rows), 2});
    r.rules = a.rules = rules;
    const RangeWalk of{r.ranges, tiles.rows, tiles.keys, N, keys_of_box};
    r.k_tile = of.view(shape, named("k_tile"), a.k);
    r.v_tile = of.view(shape, named("v_tile"), a.v);
    const double to_score = 1 / std::sqrt(as_double(D)), to_base_2 = std::log2(std::exp(1.0)),
                 scale = rules.score ? to_base_2 : to_base_2 * to_score;
    a.to_base_2 = scale;
    auto place = [&](const Expr& b, const Expr& h, const Expr& i, const Expr& j) {
        return ScorePlace{b, h, i, of.first(b, of.tile(i)) + j, shape.position(i)};
    };
    const bool far = may_add_far(rules.score);
    const Axis d = reduce_axis("d", D);
    RangeViews views;
    a.s = compute(named("s"), {B, H, S, of.most()}, [&](Expr b, Expr h, Expr i, Expr j) {
        const Expr key = r.k_tile(b, of.tile(i), j, h / shape.group, d);
        Expr score = sum(cast(f32, shape.at(a.q, b, i, h, d)) * cast(f32, key), d);
        const ScorePlace at = place(b, h, i, j);
        if (rules.score) score = changed_by(rules.score, score * to_score, at);
        score = with_range_views(score, of, at, i, at.key, j, "_of_keys" + operands.suffix, views);
        score = with_line_inputs(score, at, a.of_lines, operands.suffix);
        const Expr is_there = at.key < shape.keys;
        return select(shape.causal ? is_there && at.key <= at.position : is_there, score, -infinity);
    });
    for (const auto& [input, view] : views) r.numbers.push_back(view);
    a.m = compute(named("m"), {B, H, S}, [&](Expr b, Expr h, Expr i) {
        const Axis j = of.axis("j1", b, i);
        return reduce_max(a.s(b, h, i, j), j);
    });
    a.p = compute(named("p"), {B, H, S, of.most()}, [&](Expr b, Expr h, Expr i, Expr j) {
        return exp2(exponent_of(a.s(b, h, i, j), a.m(b, h, i), scale, far));
    });
    a.w = a.p;
    if (rules.weights)
        a.w = compute(named("w"), {B, H, S, of.most()}, [&](Expr b, Expr h, Expr i, Expr j) {
            const ScorePlace at = place(b, h, i, j);  // behind the last key there is nothing that a rule might read
            return select(at.key < shape.keys, weighed_by(rules.weights, a.p(b, h, i, j), at), 0.0);
        });
    a.l = compute(named("l"), {B, H, S}, [&](Expr b, Expr h, Expr i) {
        const Axis j = of.axis("j2", b, i);
        return sum(a.p(b, h, i, j), j);
    });
    // A row without keys in a tile with some has sums of NaN, unless they are streamed.
    auto of_seen = [&](const Expr& b, const Expr& h, const Expr& i, const Expr& sum) {
        return select(a.m(b, h, i) == -infinity, 0.0, sum);
    };
    auto divided_by = [&](const Expr& b, const Expr& h, const Expr& i) {
        const SoftmaxSum of_keys{a.m(b, h, i) * scale, of_seen(b, h, i, a.l(b, h, i))};
        return rules.sinks.defined() ? with_score(of_keys, rules.sinks(h)) : of_keys;
    };
    auto sink_of = [&](const Expr& h) { return rules.sinks.defined() ? rules.sinks(h) : Expr(); };
    auto beside_top = [&](const Expr& b, const Expr& h, const Expr& i) {
        return sum_beside_top(of_seen(b, h, i, a.l(b, h, i)), a.m(b, h, i), sink_of(h));
    };
    a.o = compute(named("o"), shape.of_tokens(S, H, E), [&](Expr b, Expr x, Expr y, Expr e) {
        const auto& [i, h] = shape.heads_first ? std::pair(y, x) : std::pair(x, y);
        const Axis j = of.axis("j3", b, i);
        const Expr values = sum(a.w(b, h, i, j) * cast(f32, r.v_tile(b, of.tile(i), j, h / shape.group, e)), j);
        if (far) return cast(shape.type, of_seen(b, h, i, values * (1.0 / beside_top(b, h, i))));
        const SoftmaxSum whole = divided_by(b, h, i);
        const Expr share =
            rules.sinks.defined() ? exp2(a.m(b, h, i) * scale - whole.top) / whole.sum : 1.0 / a.l(b, h, i);
        return cast(shape.type, of_seen(b, h, i, values * share));
    });
    a.lse = compute(named("lse"), {B, H, S}, [&](Expr b, Expr h, Expr i) {
        if (far) return lse_of_sum(beside_top(b, h, i), a.m(b, h, i), sink_of(h));
        const SoftmaxSum whole = divided_by(b, h, i);
        return whole.top + log2(whole.sum);
    });
    if (far)
        a.softmax = saved_softmax(operands.suffix, a.m,
                                  [&](const std::vector<Expr>& row) { return beside_top(row[0], row[1], row[2]); });
    return r;
}

Schedule ranged_schedule(const RangedAttention& ranged, const AttentionShape& shape, const VarlenTiles& tiles,
                         const Target& target, std::source_location where) {
    require_tiles_of_units("tiles of ranges", {.rows = tiles.rows, .keys = tiles.keys, .heads = tiles.heads},
                           shape.heads, where);
    require_sizes("tiles of ranges", {{"stages", tiles.stages}}, where);
    const Attention& a = ranged.of;
    Schedule s(a.results(), target);
    auto [b, i, h, width] = shape.loops_of(s, a.o, where);
    auto [e_tile, e] = s.split(width, padded_head(shape.width), Tail::Mask, {"e_tile", "e"}, where);
    auto [block, in_block] = s.split(i, tiles.rows, Tail::Mask, {"block", "in_block"}, where);
    auto [group, row] = s.split(in_block, rows_of_warpgroup, {"group", "row"}, where);
    auto [step, term] = s.split(s.reduce(a.o), tiles.keys, {"step", "term"}, where);
    auto [h_group, h_in_group] = s.split(h, tiles.heads, {"h_group", "h_in_group"}, where);
    s.order({b, h_group, block, h_in_group, e_tile, group, step, row, e, term}, where);
    // Of causal rows the last ones see the most keys.
    const int64_t blocks = shape.batch * shape.heads * divided(shape.rows, tiles.rows);
    s.persistent({b, h_group, block, h_in_group}, {.blocks = static_cast<int>(blocks), .longest_first = true}, where);
    s.bind(group, warpgroup, where);
    s.stream({a.m, a.l, a.o}, step, where);
    s.set_memory(a.p, Memory::Registers, where);
    s.round_to(s.stage(a.o, a.w, Memory::Registers, step, where), shape.type, where);
    if (!a.w.same(a.p)) s.inline_stage(a.w, where);
    s.mma(a.o, wgmma, {.m = row, .n = e, .k = term}, where);
    s.at(a.s, step, where);
    s.set_memory(a.s, Memory::Registers, where);
    auto [s_b, s_h, s_i, s_j] = s.loops<4>(a.s, where);
    auto [d_tile, d] = s.split(s.reduce(a.s), padded_head(shape.depth), Tail::Mask, {"d_tile", "d"}, where);
    s.order({s_b, s_h, d_tile, s_i, s_j, d}, where);
    s.at(a.lse, group, where);
    if (a.softmax.defined()) s.at({a.softmax.top, a.softmax.spread}, group, Memory::Auto, where);
    std::vector<StageRef> loaded{s.stage(a.s, a.q, Memory::Shared, h_in_group, where),
                                 s.stage(a.s, ranged.k_tile, Memory::Shared, step, where),
                                 s.stage(a.o, ranged.v_tile, Memory::Shared, step, where)};
    for (const Tensor& view : {ranged.k_tile, ranged.v_tile}) s.inline_stage(view, where);
    for (const Tensor& operand : {a.q, a.k, a.v}) inline_view(s, operand, where);
    for (const Tensor& numbers : ranged.numbers) {
        // Rows of 16 bytes come as boxes, of others each thread reads its own.
        const int64_t bytes = shape.keys * bytes_of(numbers.type());
        if (bytes % 16 == 0) loaded.push_back(s.stage(a.s, numbers, Memory::Shared, step, where));
        s.inline_stage(numbers, where);
    }
    for (const LineInput& line : a.of_lines.of_rows) keep_line(s, line, {a.s}, group, where);
    s.mma(a.s, wgmma, {.m = s_i, .n = s_j, .k = d}, where);
    s.pipeline(step, {.stages = tiles.stages}, where);
    s.delay(a.o, step, {.iterations = 1, .before = a.m}, where);  // s(j), o(j - 1), softmax(j)
    s.roles(loading_roles(s.target(), loaded, a.o, {.warpgroups = tiles.rows / rows_of_warpgroup}), where);
    return s;
}

std::optional<NamedRanged> parse_ranged(const std::string& name) {
    for (const std::string prefix : {"attention_ranged_", "attention_key_ranges_"}) {
        if (!name.starts_with(prefix)) continue;
        const auto named = parse_attention("attention_" + name.substr(prefix.size()));
        if (!named || named->tiles) return {};
        return NamedRanged{*named, prefix == "attention_key_ranges_"};
    }
    return {};
}

}  // namespace tw::schedules

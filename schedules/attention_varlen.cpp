#include "schedules/attention_varlen.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "schedules/loading_roles.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64;

}  // namespace

double varlen_flops(const VarlenShape& shape, const Offsets& of_rows, const Offsets& of_keys, const SeenKeys& seen) {
    return 2 * varlen_pairs(of_rows, of_keys, seen) * as_double(shape.heads * (shape.depth + shape.width));
}

void check_varlen(const VarlenShape& shape, std::source_location where) {
    const auto& [S, N, H, D, E, G, type] = shape;
    require_sizes("varlen attention", {{"rows", S}, {"keys", N}, {"heads", H}, {"depth", D}, {"width", E}}, where);
    user_check(G >= 1 && H % G == 0, where, "varlen attention: {} heads are no multiple of a group of {}", H, G);
    user_check(type == bf16 || type == f16, where,
               "varlen attention: operands of {}; tensor cores multiply bf16 or f16 here, so cast them", name_of(type));
}

VarlenTiles varlen_tiles(const VarlenShape& shape) {
    VarlenTiles tiles;
    if (std::max(shape.depth, shape.width) > 128) tiles.keys = 64;
    constexpr int64_t usual_keys = 8192;  // of a sequence at most
    tiles.heads = heads_in_l2(shape.heads, std::min(shape.keys, usual_keys) * (shape.depth + shape.width) *
                                               bytes_of(shape.type) / shape.group);
    return tiles;
}

namespace {

/// Of rows over the keys of their tiles, from k_tile and v_tile on.
void declare_softmax(const VarlenShape& shape, const VarlenTiles& tiles,
                     const std::function<Axis(const Expr& row)>& keys_of, VarlenAttention& a) {
    const auto& [S, N, H, D, E, G, type] = shape;
    const AttentionRules& rules = a.rules;
    const int64_t most = rounded_up(N, tiles.keys);
    // Without a rule, one factor serves both the depth and the exponential's base.
    const double to_score = 1 / std::sqrt(as_double(D)), to_base_2 = std::log2(std::exp(1.0)),
                 scale = rules.score ? to_base_2 : to_base_2 * to_score;
    const bool far = may_add_far(rules.score);
    Axis d = reduce_axis("d", D);
    auto sees = [&](const Expr& i, const Expr& j) {
        return cast(i64, a.seen(i, 0)) <= j && j < cast(i64, a.seen(i, 1));
    };
    a.s = compute("s", {H, S, most}, [&](Expr h, Expr i, Expr j) {
        Expr score = sum(cast(f32, a.q(i, h, d)) * cast(f32, a.k_tile(i / tiles.rows, j, h / shape.group, d)), d);
        if (rules.score) score = changed_by(rules.score, score * to_score, place_of_row(a.places, h, i, j));
        return select(sees(i, j), score, -infinity);
    });
    a.m = compute("m", {H, S}, [&](Expr h, Expr i) {
        const Axis j = keys_of(i);
        return reduce_max(a.s(h, i, j), j);
    });
    a.p = compute("p", {H, S, most},
                  [&](Expr h, Expr i, Expr j) { return exp2(exponent_of(a.s(h, i, j), a.m(h, i), scale, far)); });
    a.w = a.p;
    if (rules.weights)
        a.w = compute("w", {H, S, most}, [&](Expr h, Expr i, Expr j) {
            // What is not seen has no place at which a rule might read.
            return select(sees(i, j), weighed_by(rules.weights, a.p(h, i, j), place_of_row(a.places, h, i, j)), 0.0);
        });
    a.l = compute("l", {H, S}, [&](Expr h, Expr i) {
        const Axis j = keys_of(i);
        return sum(a.p(h, i, j), j);
    });
    // A row without keys in a tile with some has sums of NaN, unless they are streamed.
    auto is_seen = [&](const Expr& h, const Expr& i) { return a.l(h, i) > 0.0; };
    auto sink_of = [&](const Expr& h) { return rules.sinks.defined() ? rules.sinks(h) : Expr(); };
    auto beside_top = [&](const Expr& h, const Expr& i) {
        return sum_beside_top(select(is_seen(h, i), a.l(h, i), 0.0), a.m(h, i), sink_of(h));
    };
    auto with_sink = [&](const Expr& h, const Expr& i) {
        return with_score({a.m(h, i) * scale, select(is_seen(h, i), a.l(h, i), 0.0)}, rules.sinks(h));
    };
    a.o = compute("o", {S, H, E}, [&](Expr i, Expr h, Expr e) {
        const Axis j = keys_of(i);
        const Expr values = sum(a.w(h, i, j) * cast(f32, a.v_tile(i / tiles.rows, j, h / shape.group, e)), j);
        Expr share = 1.0 / a.l(h, i);
        if (far) {
            share = 1.0 / beside_top(h, i);
        } else if (rules.sinks.defined()) {
            const SoftmaxSum whole = with_sink(h, i);
            share = exp2(a.m(h, i) * scale - whole.top) / whole.sum;
        }
        return cast(shape.type, select(is_seen(h, i), values, 0.0) * select(is_seen(h, i), share, 0.0));
    });
    a.lse = compute("lse", {H, S}, [&](Expr h, Expr i) {
        if (far) return lse_of_sum(beside_top(h, i), a.m(h, i), sink_of(h));
        if (!rules.sinks.defined()) return select(is_seen(h, i), a.m(h, i) * scale + log2(a.l(h, i)), -infinity);
        const SoftmaxSum whole = with_sink(h, i);
        return whole.top + log2(whole.sum);
    });
    if (far)
        a.softmax = saved_softmax("", a.m, [&](const std::vector<Expr>& row) { return beside_top(row[0], row[1]); });
}

}  // namespace

VarlenAttention declare_varlen_attention(const VarlenShape& shape, const VarlenTiles& tiles,
                                         const AttentionRules& rules, std::source_location where) {
    CalledFrom caller(where);
    check_varlen(shape, where);
    require_sizes("varlen tiles",
                  {{"rows", tiles.rows}, {"keys", tiles.keys}, {"stages", tiles.stages}, {"heads", tiles.heads}},
                  where);
    check_sinks(shape.heads, rules.sinks);
    const auto& [S, N, H, D, E, G, type] = shape;
    const int64_t most = rounded_up(N, tiles.keys);
    VarlenAttention a;
    a.q = input("q", type, {S, H, D});
    a.k = input("k", type, {N, H / G, D});
    a.v = input("v", type, {N, H / G, E});
    a.tiles = input("tiles", i32, {divided(S, tiles.rows), 2});
    a.seen = input("seen", i32, {S, 2});
    a.places = input("places", i32, {S, numbers_of_place});
    a.rules = rules;
    // Of each tile the keys from its first on. Behind all of them there are none.
    auto of_tile = [&](const std::string& name, const Tensor& all, int64_t extent) {
        return compute(name, {divided(S, tiles.rows), most, H / G, extent}, [&](Expr t, Expr j, Expr h, Expr x) {
            return padded(all, 0.0)(cast(i64, a.tiles(t, 0)) + j, h, x);
        });
    };
    a.k_tile = of_tile("k_tile", a.k, D);
    a.v_tile = of_tile("v_tile", a.v, E);
    auto keys_of = [&](const Expr& i) {
        const Expr steps = (cast(i64, a.tiles(i / tiles.rows, 1)) + (tiles.keys - 1)) / tiles.keys;
        return reduce_axis("j", min(steps * tiles.keys, most));
    };
    declare_softmax(shape, tiles, keys_of, a);
    return a;
}

std::vector<Tensor> VarlenAttention::results() const { return results_of(o, lse, softmax); }

Schedule varlen_schedule(const VarlenAttention& a, const VarlenShape& shape, const VarlenTiles& tiles,
                         const Target& target, std::source_location where) {
    require_tiles_of_units("varlen tiles", {.rows = tiles.rows, .keys = tiles.keys, .heads = tiles.heads}, shape.heads,
                           where);
    require_sizes("varlen tiles", {{"stages", tiles.stages}}, where);
    Schedule s(a.results(), target);
    auto [i, h, width] = s.loops<3>(a.o, where);
    auto [e_tile, e] = s.split(width, padded_head(shape.width), Tail::Mask, {"e_tile", "e"}, where);
    auto [block, in_block] = s.split(i, tiles.rows, Tail::Mask, {"block", "in_block"}, where);
    auto [group, row] = s.split(in_block, rows_of_warpgroup, {"group", "row"}, where);
    auto [step, term] = s.split(s.reduce(a.o), tiles.keys, {"step", "term"}, where);
    auto [h_group, h_in_group] = s.split(h, tiles.heads, {"h_group", "h_in_group"}, where);
    s.order({h_group, block, h_in_group, e_tile, group, step, row, e, term}, where);
    // Of causal sequences the last rows see the most keys.
    const int64_t blocks = shape.heads * divided(shape.rows, tiles.rows);
    s.persistent({h_group, block, h_in_group}, {.blocks = static_cast<int>(blocks), .longest_first = true}, where);
    s.bind(group, warpgroup, where);
    s.stream({a.m, a.l, a.o}, step, where);
    s.set_memory(a.p, Memory::Registers, where);
    const Stage weights = s.stage(a.o, a.w, Memory::Registers, step, where);
    s.round_to(weights, shape.type, where);
    std::vector<StageRef> of_places;
    if (reads(a.s, a.places)) of_places.emplace_back(a.s, where);
    if (!a.w.same(a.p)) {
        s.inline_stage(a.w, where);
        if (reads(a.w, a.places)) of_places.emplace_back(weights);
    }
    s.mma(a.o, wgmma, {.m = row, .n = e, .k = term}, where);
    s.at(a.s, step, where);
    s.set_memory(a.s, Memory::Registers, where);
    auto [s_h, s_i, s_j] = s.loops<3>(a.s, where);
    auto [d_tile, d] = s.split(s.reduce(a.s), padded_head(shape.depth), Tail::Mask, {"d_tile", "d"}, where);
    s.order({s_h, d_tile, s_i, s_j, d}, where);
    s.at(a.lse, group, where);
    if (a.softmax.defined()) s.at({a.softmax.top, a.softmax.spread}, group, Memory::Auto, where);
    s.stage(a.s, a.seen, Memory::Registers, group, where);
    if (!of_places.empty()) s.stage(of_places, a.places, Memory::Registers, group, where);
    Stage queries = s.stage(a.s, a.q, Memory::Shared, h_in_group, where);
    Stage keys = s.stage(a.s, a.k_tile, Memory::Shared, step, where),
          values = s.stage(a.o, a.v_tile, Memory::Shared, step, where);
    s.inline_stage(a.k_tile, where);
    s.inline_stage(a.v_tile, where);
    s.mma(a.s, wgmma, {.m = s_i, .n = s_j, .k = d}, where);
    s.pipeline(step, {.stages = tiles.stages}, where);
    s.delay(a.o, step, {.iterations = 1, .before = a.m}, where);  // s(j), o(j - 1), softmax(j)
    s.roles(loading_roles(s.target(), {queries, keys, values}, a.o, {.warpgroups = tiles.rows / rows_of_warpgroup}),
            where);
    return s;
}

std::optional<NamedVarlen> parse_varlen(const std::string& name) {
    static const std::string number_text = "([1-9][0-9]{0,6})", by = "x" + number_text;
    static const std::regex form("attention_varlen_(bf16|f16)_" + number_text + by + by + "(?:_keys" + number_text +
                                 ")?(?:_width" + number_text + ")?(?:_group" + number_text + ")?" +
                                 rules_without_tables + "(?:_tile" + number_text + by +
                                 "s([1-9])(?:h([1-9][0-9]*))?)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto number = [&](size_t index, int64_t otherwise) {
        return match[index].matched ? std::stoll(match[index]) : otherwise;
    };
    NamedVarlen named{.shape = {.rows = number(2, 0),
                                .keys = number(5, number(2, 0)),
                                .heads = number(3, 0),
                                .depth = number(4, 0),
                                .width = number(6, number(4, 0)),
                                .group = number(7, 1),
                                .type = match[1] == "bf16" ? bf16 : f16},
                      .rules = match[8],
                      .tiles = {}};
    const VarlenShape& shape = named.shape;
    if (shape.heads % shape.group != 0 || shape.depth % 8 != 0 || shape.width % 8 != 0) return {};
    if (std::max(shape.depth, shape.width) > 256) return {};
    if (match[9].matched) {
        named.tiles = VarlenTiles{number(9, 0), number(10, 0), static_cast<int>(number(11, 0)), number(12, 1)};
        if (named.tiles->rows % rows_of_warpgroup != 0 || named.tiles->rows > 3 * rows_of_warpgroup) return {};
        if (shape.heads % named.tiles->heads != 0) return {};
    }
    return named;
}

}  // namespace tw::schedules

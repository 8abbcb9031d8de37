#include "schedules/attention_varlen.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "schedules/elementwise.h"
#include "schedules/loading_roles.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64;

void check_offsets(const Offsets& of_rows, const Offsets& of_keys) {
    for (const Offsets* each : {&of_rows, &of_keys})
        if (each->empty() || each->front() != 0 || !std::ranges::is_sorted(*each))
            throw_error(Error, "varlen: offsets begin with 0 and grow, up to the number of all {}",
                        each == &of_rows ? "rows" : "keys");
    if (of_rows.size() != of_keys.size())
        throw_error(Error, "varlen: offsets of {} sequences of rows, of {} of keys; each sequence has both",
                    of_rows.size() - 1, of_keys.size() - 1);
}

/// The keys from the first to behind the last.
struct Range {
    int64_t first = 0, behind = 0;

    int64_t count() const { return std::max<int64_t>(behind - first, 0); }
};

std::vector<Range> seen_by_rows(const Offsets& of_rows, const Offsets& of_keys, bool causal) {
    std::vector<Range> seen;
    for (size_t b = 0; b + 1 < of_rows.size(); ++b)
        for (int64_t row = of_rows[b]; row < of_rows[b + 1]; ++row) {
            const int64_t fewer = causal ? of_rows[b + 1] - 1 - row : 0;
            seen.push_back({of_keys[b], std::max(of_keys[b], of_keys[b + 1] - fewer)});
        }
    return seen;
}

Value number(int64_t value) { return make_value(i32, value); }

}  // namespace

VarlenTables varlen_tables(const Offsets& of_rows, const Offsets& of_keys, bool causal, int64_t rows_of_tile) {
    check_offsets(of_rows, of_keys);
    const std::vector<Range> seen = seen_by_rows(of_rows, of_keys, causal);
    const auto rows = static_cast<int64_t>(seen.size()), tiles = divided(rows, rows_of_tile);
    VarlenTables tables{host_array(i32, {tiles, 2}), host_array(i32, {rows, 2})};
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const auto begin = seen.begin() + tile * rows_of_tile,
                   end = seen.begin() + std::min(rows, (tile + 1) * rows_of_tile);
        Range all{of_keys.back(), 0};
        for (auto row = begin; row != end; ++row)
            if (row->count() > 0) all = {std::min(all.first, row->first), std::max(all.behind, row->behind)};
        if (all.count() == 0) all = {};
        tables.tiles.set({tile, 0}, number(all.first));
        tables.tiles.set({tile, 1}, number(all.count()));
        for (auto row = begin; row != end; ++row) {
            tables.seen.set({row - seen.begin(), 0}, number(row->count() > 0 ? row->first - all.first : 0));
            tables.seen.set({row - seen.begin(), 1}, number(row->count() > 0 ? row->behind - all.first : 0));
        }
    }
    return tables;
}

VarlenTableTensors declare_varlen_tables(int64_t sequences, int64_t rows, int64_t keys, bool causal,
                                         int64_t rows_of_tile) {
    const Tensor of_rows = input("of_rows", i32, {sequences + 1}), of_keys = input("of_keys", i32, {sequences + 1});
    VarlenTableTensors t;
    const Axis b = reduce_axis("b", sequences);
    // A row belongs to the sequence before which as many end; behind the last one there are no keys.
    const Tensor sequence =
        compute("sequence", {rows}, [&](Expr i) { return sum(select(cast(i64, of_rows(b + 1)) <= i, 1, 0), b); });
    t.range = compute("range", {rows, 2}, [&](Expr i, Expr end) {
        const Expr own = min(cast(i64, sequence(i)), sequences - 1), first = cast(i64, of_keys(own)),
                   last = cast(i64, of_rows(own + 1)) - 1;
        const Expr behind = max(cast(i64, of_keys(own + 1)) - (causal ? last - i : Expr(0)), first);
        return cast(i32, select(end == 0, first, select(i <= last, behind, first)));
    });
    auto sees = [&](const Expr& i) { return t.range(i, 0) < t.range(i, 1); };
    auto row_of = [&](const Expr& tile, const Axis& r) { return min(tile * rows_of_tile + r, rows - 1); };
    const Axis r1 = reduce_axis("r1", rows_of_tile), r2 = reduce_axis("r2", rows_of_tile);
    const int64_t tiles = divided(rows, rows_of_tile);
    const Expr none = cast(i32, Expr(keys));
    t.first = compute("first", {tiles}, [&](Expr tile) {
        return reduce_min(select(sees(row_of(tile, r1)), t.range(row_of(tile, r1), 0), none), r1);
    });
    t.behind = compute("behind", {tiles}, [&](Expr tile) {
        return reduce_max(select(sees(row_of(tile, r2)), t.range(row_of(tile, r2), 1), 0), r2);
    });
    t.tiles = compute("tiles", {tiles, 2}, [&](Expr tile, Expr what) {
        const Expr count = max(t.behind(tile) - t.first(tile), 0);
        return select(what == 0, select(count == 0, 0, t.first(tile)), count);
    });
    t.seen = compute("seen", {rows, 2},
                     [&](Expr i, Expr end) { return select(sees(i), t.range(i, end) - t.first(i / rows_of_tile), 0); });
    return t;
}

Schedule varlen_tables_schedule(const VarlenTableTensors& tables, const Target& target, std::source_location where) {
    Schedule s({tables.tiles, tables.seen}, target, where);
    for (const Stage& stage : s.all_stages()) schedule_each_element(s, stage, 128, where);
    return s;
}

double varlen_flops(const VarlenShape& shape, const Offsets& of_rows, const Offsets& of_keys, bool causal) {
    check_offsets(of_rows, of_keys);
    double pairs = 0;
    for (const Range& row : seen_by_rows(of_rows, of_keys, causal)) pairs += static_cast<double>(row.count());
    return 2 * pairs * static_cast<double>(shape.heads * (shape.depth + shape.width));
}

VarlenTiles varlen_tiles(const VarlenShape& shape) {
    VarlenTiles tiles;
    if (std::max(shape.depth, shape.width) > 128) tiles.keys = 64;
    constexpr int64_t usual_keys = 8192;  // of a sequence at most
    tiles.heads = heads_in_l2(shape.heads, std::min(shape.keys, usual_keys) * (shape.depth + shape.width) *
                                               bytes_of(shape.type) / shape.group);
    return tiles;
}

VarlenAttention declare_varlen_attention(const VarlenShape& shape, const VarlenTiles& tiles) {
    const auto& [S, N, H, D, E, G, type] = shape;
    if (G < 1 || H % G != 0) throw_error(Error, "varlen attention: {} heads are no multiple of a group of {}", H, G);
    const int64_t most = rounded_up(N, tiles.keys);
    VarlenAttention a;
    a.q = input("q", type, {S, H, D});
    a.k = input("k", type, {N, H / G, D});
    a.v = input("v", type, {N, H / G, E});
    a.tiles = input("tiles", i32, {divided(S, tiles.rows), 2});
    a.seen = input("seen", i32, {S, 2});
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
    const double scale = std::log2(std::exp(1.0)) / std::sqrt(static_cast<double>(D));
    Axis d = reduce_axis("d", D);
    a.s = compute("s", {H, S, most}, [&](Expr h, Expr i, Expr j) {
        const Expr score = sum(cast(f32, a.q(i, h, d)) * cast(f32, a.k_tile(i / tiles.rows, j, h / shape.group, d)), d);
        return select(cast(i64, a.seen(i, 0)) <= j && j < cast(i64, a.seen(i, 1)), score, -infinity);
    });
    a.m = compute("m", {H, S}, [&](Expr h, Expr i) {
        const Axis j = keys_of(i);
        return reduce_max(a.s(h, i, j), j);
    });
    a.p = compute("p", {H, S, most},
                  [&](Expr h, Expr i, Expr j) { return exp2(a.s(h, i, j) * scale - a.m(h, i) * scale); });
    a.l = compute("l", {H, S}, [&](Expr h, Expr i) {
        const Axis j = keys_of(i);
        return sum(a.p(h, i, j), j);
    });
    a.o = compute("o", {S, H, E}, [&](Expr i, Expr h, Expr e) {
        const Axis j = keys_of(i);
        const Expr values = sum(a.p(h, i, j) * cast(f32, a.v_tile(i / tiles.rows, j, h / shape.group, e)), j);
        return cast(shape.type, values * select(a.l(h, i) > 0.0, 1.0 / a.l(h, i), 0.0));
    });
    a.lse = compute("lse", {H, S}, [&](Expr h, Expr i) { return a.m(h, i) * scale + log2(a.l(h, i)); });
    return a;
}

Schedule varlen_schedule(const VarlenAttention& a, const VarlenShape& shape, const VarlenTiles& tiles,
                         const Target& target, std::source_location where) {
    Schedule s({a.o, a.lse}, target);
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
    s.round_to(s.stage(a.o, a.p, Memory::Registers, step, where), shape.type, where);
    s.mma(a.o, wgmma, {.m = row, .n = e, .k = term}, where);
    s.at(a.s, step, where);
    s.set_memory(a.s, Memory::Registers, where);
    auto [s_h, s_i, s_j] = s.loops<3>(a.s, where);
    auto [d_tile, d] = s.split(s.reduce(a.s), padded_head(shape.depth), Tail::Mask, {"d_tile", "d"}, where);
    s.order({s_h, d_tile, s_i, s_j, d}, where);
    s.at(a.lse, group, where);
    s.stage(a.s, a.seen, Memory::Registers, group, where);
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

std::optional<NamedVarlenTables> parse_varlen_tables(const std::string& name) {
    static const std::string number_text = "([1-9][0-9]{0,6})";
    static const std::regex form("attention_varlen_tables_" + number_text + "x" + number_text + "(?:_keys" +
                                 number_text + ")?(_causal)?(?:_tile" + number_text + ")?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto number = [&](size_t index, int64_t otherwise) {
        return match[index].matched ? std::stoll(match[index]) : otherwise;
    };
    return NamedVarlenTables{.sequences = number(1, 0),
                             .rows = number(2, 0),
                             .keys = number(3, number(2, 0)),
                             .causal = match[4].matched,
                             .rows_of_tile = number(5, VarlenTiles().rows)};
}

std::optional<NamedVarlen> parse_varlen(const std::string& name) {
    static const std::string number_text = "([1-9][0-9]{0,6})", by = "x" + number_text;
    static const std::regex form("attention_varlen_(bf16|f16)_" + number_text + by + by + "(?:_keys" + number_text +
                                 ")?(?:_width" + number_text + ")?(?:_group" + number_text + ")?(?:_tile" +
                                 number_text + by + "s([1-9])(?:h([1-9][0-9]*))?)?");
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
                      .tiles = {}};
    const VarlenShape& shape = named.shape;
    if (shape.heads % shape.group != 0 || shape.depth % 8 != 0 || shape.width % 8 != 0) return {};
    if (std::max(shape.depth, shape.width) > 256) return {};
    if (match[8].matched) {
        named.tiles = VarlenTiles{number(8, 0), number(9, 0), static_cast<int>(number(10, 0)), number(11, 1)};
        if (named.tiles->rows % rows_of_warpgroup != 0 || named.tiles->rows > 3 * rows_of_warpgroup) return {};
        if (shape.heads % named.tiles->heads != 0) return {};
    }
    return named;
}

}  // namespace tw::schedules

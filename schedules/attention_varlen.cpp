#include "schedules/attention_varlen.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "schedules/attention_backward.h"
#include "schedules/elementwise.h"
#include "schedules/loading_roles.h"
#include "schedules/require_sizes.h"
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

/// The rows that see each key: causal ones begin where as many rows are left as keys.
std::vector<Range> seeing_keys(const Offsets& of_rows, const Offsets& of_keys, bool causal) {
    std::vector<Range> seeing;
    for (size_t b = 0; b + 1 < of_keys.size(); ++b)
        for (int64_t key = of_keys[b]; key < of_keys[b + 1]; ++key) {
            const int64_t first = causal ? of_rows[b + 1] - (of_keys[b + 1] - key) : of_rows[b];
            seeing.push_back({std::max(of_rows[b], first), of_rows[b + 1]});
        }
    return seeing;
}

Value number(int64_t value) { return make_value(i32, value); }

/// What tiles of keys begin with is a multiple of so many rows: where boxes of numbers of rows may begin.
int64_t multiple_of(TilesOf side) { return side == TilesOf::Rows ? 1 : rows_of_box; }

/// Of tiles of so many elements side by side, which have these ranges.
VarlenTables tables_of(const std::vector<Range>& ranges, int64_t of_tile, int64_t multiple) {
    const auto count = static_cast<int64_t>(ranges.size()), tiles = divided(count, of_tile);
    VarlenTables tables{host_array(i32, {tiles, 2}), host_array(i32, {count, 2})};
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const auto begin = ranges.begin() + tile * of_tile,
                   end = ranges.begin() + std::min(count, (tile + 1) * of_tile);
        Range all;
        for (auto each = begin; each != end; ++each) {
            if (each->count() == 0) continue;
            const int64_t first = all.count() == 0 ? each->first : std::min(all.first, each->first);
            all = {first / multiple * multiple, std::max(all.behind, each->behind)};
        }
        tables.tiles.set({tile, 0}, number(all.first));
        tables.tiles.set({tile, 1}, number(all.count()));
        for (auto each = begin; each != end; ++each) {
            tables.seen.set({each - ranges.begin(), 0}, number(each->count() > 0 ? each->first - all.first : 0));
            tables.seen.set({each - ranges.begin(), 1}, number(each->count() > 0 ? each->behind - all.first : 0));
        }
    }
    return tables;
}

}  // namespace

VarlenTables varlen_tables(const Offsets& of_rows, const Offsets& of_keys, bool causal, int64_t of_tile, TilesOf side,
                           std::source_location where) {
    require_sizes("varlen tables", {{"of_tile", of_tile}}, where);
    check_offsets(of_rows, of_keys);
    const auto ranges = side == TilesOf::Rows ? seen_by_rows : seeing_keys;
    return tables_of(ranges(of_rows, of_keys, causal), of_tile, multiple_of(side));
}

namespace {

/// Of each element of one side the first of the other side that it goes with, and behind the last.
Tensor declare_ranges(int64_t sequences, int64_t count, bool causal, TilesOf side) {
    const bool rows = side == TilesOf::Rows;
    const Tensor of_rows = input("of_rows", i32, {sequences + 1}), of_keys = input("of_keys", i32, {sequences + 1});
    const Tensor &own_side = rows ? of_rows : of_keys, &other_side = rows ? of_keys : of_rows;
    const Axis b = reduce_axis("b", sequences);
    // An element belongs to the sequence before which as many end; behind the last one there is nothing.
    const Tensor sequence =
        compute("sequence", {count}, [&](Expr i) { return sum(select(cast(i64, own_side(b + 1)) <= i, 1, 0), b); });
    return compute("range", {count, 2}, [&](Expr i, Expr end) {
        const Expr own = min(cast(i64, sequence(i)), sequences - 1), after_own = cast(i64, own_side(own + 1));
        Expr first = cast(i64, other_side(own)), behind = cast(i64, other_side(own + 1));
        const Expr begin = first;
        if (causal && rows) behind = max(behind - (after_own - 1 - i), first);
        if (causal && !rows) first = max(first, behind - (after_own - i));
        return cast(i32, select(end == 0, select(i < after_own, first, begin), select(i < after_own, behind, begin)));
    });
}

}  // namespace

VarlenTableTensors declare_varlen_tables(int64_t sequences, int64_t rows, int64_t keys, bool causal, int64_t of_tile,
                                         TilesOf side, std::source_location where) {
    require_sizes("varlen tables", {{"sequences", sequences}, {"rows", rows}, {"keys", keys}, {"of_tile", of_tile}},
                  where);
    const bool by_rows = side == TilesOf::Rows;
    const int64_t count = by_rows ? rows : keys, others = by_rows ? keys : rows, tiles = divided(count, of_tile);
    const std::string suffix = by_rows ? "" : "_of_keys";
    VarlenTableTensors t;
    t.range = declare_ranges(sequences, count, causal, side);
    auto sees = [&](const Expr& i) { return t.range(i, 0) < t.range(i, 1); };
    auto in_tile = [&](const Expr& tile, const Axis& r) { return min(tile * of_tile + r, count - 1); };
    const Axis r1 = reduce_axis("r1", of_tile), r2 = reduce_axis("r2", of_tile);
    const Expr none = cast(i32, Expr(others));
    t.first = compute("first", {tiles}, [&](Expr tile) {
        const Expr first = reduce_min(select(sees(in_tile(tile, r1)), t.range(in_tile(tile, r1), 0), none), r1);
        const auto multiple = constant(i32, multiple_of(side));
        return by_rows ? first : first / multiple * multiple;
    });
    t.behind = compute("behind", {tiles}, [&](Expr tile) {
        return reduce_max(select(sees(in_tile(tile, r2)), t.range(in_tile(tile, r2), 1), 0), r2);
    });
    t.tiles = compute("tiles" + suffix, {tiles, 2}, [&](Expr tile, Expr what) {
        const Expr extent = max(t.behind(tile) - t.first(tile), 0);
        return select(what == 0, select(extent == 0, 0, t.first(tile)), extent);
    });
    t.seen = compute("seen" + suffix, {count, 2},
                     [&](Expr i, Expr end) { return select(sees(i), t.range(i, end) - t.first(i / of_tile), 0); });
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

VarlenAttention declare_varlen_attention(const VarlenShape& shape, const VarlenTiles& tiles,
                                         std::source_location where) {
    check_varlen(shape, where);
    require_sizes("varlen tiles",
                  {{"rows", tiles.rows}, {"keys", tiles.keys}, {"stages", tiles.stages}, {"heads", tiles.heads}},
                  where);
    const auto& [S, N, H, D, E, G, type] = shape;
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
        // A row without keys in a tile with some has sums of NaN, unless they are streamed.
        const Expr is_seen = a.l(h, i) > 0.0;
        return cast(shape.type, select(is_seen, values, 0.0) * select(is_seen, 1.0 / a.l(h, i), 0.0));
    });
    a.lse = compute("lse", {H, S}, [&](Expr h, Expr i) {
        return select(a.l(h, i) > 0.0, a.m(h, i) * scale + log2(a.l(h, i)), -infinity);
    });
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
                                 number_text + ")?(_causal)?(_of_keys)?(?:_tile" + number_text + ")?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto number = [&](size_t index, int64_t otherwise) {
        return match[index].matched ? std::stoll(match[index]) : otherwise;
    };
    return NamedVarlenTables{.sequences = number(1, 0),
                             .rows = number(2, 0),
                             .keys = number(3, number(2, 0)),
                             .causal = match[4].matched,
                             .of_tile = number(6, match[5].matched ? GradientTiles().key_rows : VarlenTiles().rows),
                             .side = match[5].matched ? TilesOf::Keys : TilesOf::Rows};
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

#include "schedules/attention_fp8.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "dsl/interleaved_pairs.h"
#include "schedules/elementwise.h"
#include "schedules/loading_roles.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64, terms_of_unit = 32, most_depth = 256;
constexpr int64_t threads_of_copies = 128, neighbours = 8;
// Exponentials up to 2^8 = 256, the largest power of two below 448, the largest number of e4m3.
constexpr Reference below_maximum = Reference::offset(-8);

}  // namespace

double bytes_of_fp8(const AttentionShape& shape) {
    AttentionShape of_8_bits = shape;
    of_8_bits.type = e4m3;
    constexpr int64_t more = 1;  // results have 16 bits
    return of_8_bits.bytes() + static_cast<double>(shape.batch * shape.rows * shape.heads * shape.width * more);
}

Fp8Tiles fp8_tiles(const AttentionShape& shape, const Target& target) {
    Fp8Tiles tiles;
    if (shape.batch * shape.heads * divided(shape.rows, rows_of_warpgroup) <= target.multiprocessors)
        tiles.rows = rows_of_warpgroup;
    if (std::max(shape.depth, shape.width) > 128) tiles.keys = 64;
    return tiles;
}

Fp8Attention declare_fp8_attention(const AttentionShape& shape, const Fp8Tiles& tiles, std::source_location where) {
    require_sizes("fp8 tiles",
                  {{"rows", tiles.rows, rows_of_warpgroup}, {"keys", tiles.keys}, {"stages", tiles.stages}}, where);
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    user_check(G >= 1 && H % G == 0, where, "fp8 attention: {} heads are no multiple of a group of {}", H, G);
    user_check(!heads_first, where, "fp8 attention: heads in front of rows; give [batch, rows, heads, depth]");
    for (int64_t size : {D, E})
        user_check(size % terms_of_unit == 0 && size <= most_depth && size >= 1, where,
                   "fp8 attention: heads of {} elements; give a multiple of {} up to {}", size, terms_of_unit,
                   most_depth);
    const int64_t rows = rounded_up(S, tiles.rows), keys = rounded_up(N, tiles.keys);
    Fp8Attention a;
    a.q = input("q", e4m3, {B, S, H, D}), a.k = input("k", e4m3, {B, N, H / G, D});
    a.v = input("v", e4m3, {B, N, H / G, E});
    a.scale_q = input("scale_q", f32, {B, H});
    a.scale_k = input("scale_k", f32, {B, H / G}), a.scale_v = input("scale_v", f32, {B, H / G});
    a.v_t = compute("v_t", {B, H / G, E, keys},
                    [&](Expr b, Expr g, Expr e, Expr j) { return padded(a.v, 0.0)(b, interleaved_pairs(j), g, e); });
    a.q_tiles = compute("q_tiles", {B, rows, H, D},
                        [&](Expr b, Expr i, Expr h, Expr d) { return padded(a.q, 0.0)(b, i, h, d); });
    a.k_tiles = compute("k_tiles", {B, keys, H / G, D},
                        [&](Expr b, Expr j, Expr g, Expr d) { return padded(a.k, 0.0)(b, j, g, d); });
    Axis d = reduce_axis("d", D), j1 = reduce_axis("j1", keys), j2 = reduce_axis("j2", keys),
         j3 = reduce_axis("j3", keys);
    const double scale = std::log2(std::exp(1.0)) / std::sqrt(static_cast<double>(D));
    a.s = compute("s", {B, H, rows, keys}, [&](Expr b, Expr h, Expr i, Expr j) {
        const Expr g = h / shape.group;
        const Expr score = sum(cast(f32, a.q_tiles(b, i, h, d)) * cast(f32, a.k_tiles(b, j, g, d)), d) *
                           (a.scale_q(b, h) * a.scale_k(b, g) * scale);
        const bool sees_padding = keys > N && (!causal || S - 1 + before >= N);
        Expr seen = causal ? select(j <= i + shape.keys_before, score, -infinity) : score;
        return sees_padding ? select(j < shape.keys, seen, -infinity) : seen;
    });
    a.m = compute("m", {B, H, rows}, [&](Expr b, Expr h, Expr i) { return reduce_max(a.s(b, h, i, j1), j1); });
    a.p = compute("p", {B, H, rows, keys},
                  [&](Expr b, Expr h, Expr i, Expr j) { return exp2(a.s(b, h, i, j) - a.m(b, h, i)); });
    a.l = compute("l", {B, H, rows}, [&](Expr b, Expr h, Expr i) { return sum(a.p(b, h, i, j2), j2); });
    const bool whole = rows == S;
    // Of a row without keys all terms are 0.
    auto of_seen = [&](const Expr& b, const Expr& h, const Expr& i, const Expr& sum) {
        return shape.has_empty_rows() ? select(a.m(b, h, i) == -infinity, 0.0, sum) : sum;
    };
    a.o_tiles = compute(whole ? "o" : "o_tiles", {B, rows, H, E}, [&](Expr b, Expr i, Expr h, Expr e) {
        const Expr g = h / shape.group;
        const Expr values = sum(a.p(b, h, i, interleaved_pairs(j3)) * cast(f32, a.v_t(b, g, e, j3)), j3);
        return cast(bf16, of_seen(b, h, i, values * (a.scale_v(b, g) / a.l(b, h, i))));
    });
    a.o = whole ? a.o_tiles
                : compute("o", {B, S, H, E}, [&](Expr b, Expr i, Expr h, Expr e) { return a.o_tiles(b, i, h, e); });
    a.lse = compute("lse", {B, H, S},
                    [&](Expr b, Expr h, Expr i) { return a.m(b, h, i) + log2(of_seen(b, h, i, a.l(b, h, i))); });
    return a;
}

namespace {

/// Square tiles pass through shared memory; both sides move 16 keys or elements at once.
void schedule_values(Schedule& s, const Fp8Attention& a, std::source_location where) {
    constexpr int64_t side = 64, neighbours = 16, lanes = side / neighbours, threads = 256;
    auto [b, g, e, j] = s.loops<4>(a.v_t, where);
    auto [e_block, e_tile] = s.split(e, side, Tail::Mask, {"e_block", "e_tile"}, where);
    auto [j_block, j_tile] = s.split(j, side, Tail::Mask, {"j_block", "j_tile"}, where);
    auto [lane_of, element] = s.split(j_tile, neighbours, {"t", "element"}, where);
    s.order({b, g, e_block, j_block, e_tile, lane_of, element}, where);
    const Loop block = s.fuse({b, g, e_block, j_block}, "value_tile", where);
    s.bind(block, grid.x, where);
    static_assert(side * lanes == threads);
    s.bind(e_tile, thread, where);
    s.bind(lane_of, thread, where);
    s.bind(element, tw::vector, where);
    s.stage(a.v_t, a.v, Memory::Shared, block, where);
}

/// The rows that there are, of whole tiles.
void schedule_output(Schedule& s, const Tensor& o, std::source_location where) {
    auto [b, i, h, e] = s.loops<4>(o, where);
    auto [vector, element] = s.split(e, neighbours, {"vector", "element"}, where);
    const Loop all = s.fuse({b, i, h, vector}, "all", where);
    auto [block, in_block] = s.split(all, threads_of_copies, Tail::Mask, {"copy_block", "in_copy_block"}, where);
    s.bind(block, grid.x, where);
    s.bind(in_block, thread, where);
    s.bind(element, tw::vector, where);
}

}  // namespace

Schedule fp8_attention_schedule(const Fp8Attention& a, const AttentionShape& shape, const Fp8Tiles& tiles,
                                const Target& target, std::source_location where) {
    require_tiles_of_units("fp8 tiles", {.rows = tiles.rows, .keys = tiles.keys, .multiple_of_keys = terms_of_unit},
                           shape.heads, where);
    const int64_t warpgroups = tiles.rows / rows_of_warpgroup;
    Schedule s({a.o, a.lse}, target);
    auto [b, i, h, e] = s.loops<4>(a.o_tiles, where);
    auto [block, in_block] = s.split(i, tiles.rows, {"block", "in_block"}, where);
    auto [group, row] = s.split(in_block, rows_of_warpgroup, {"group", "row"}, where);
    auto [step, term] = s.split(s.reduce(a.o_tiles), tiles.keys, {"step", "term"}, where);
    // Blocks that run side by side find in L2 what they share; of causal rows the last ones, which are the longest,
    // begin.
    const int64_t bytes_of_keys = shape.keys * (shape.depth + shape.width) / shape.group;
    auto [h_group, h_in_group] = s.split(h, heads_in_l2(shape.heads, bytes_of_keys), {"h_group", "h_in_group"}, where);
    const std::vector<Loop> of_tiles{b, h_group, block, h_in_group};
    s.order({b, h_group, block, h_in_group, group, step, row, e, term}, where);
    Loop tile = h_in_group;
    if (shape.causal) {
        const int64_t blocks = shape.batch * shape.heads * divided(shape.rows, tiles.rows);
        s.persistent(of_tiles, {.blocks = static_cast<int>(blocks), .longest_first = true}, where);
    } else {
        tile = s.fuse(of_tiles, "tile", where);
        s.bind(tile, grid.x, where);
    }
    s.bind(group, warpgroup, where);
    s.stream({a.m, a.l, a.o_tiles}, step, {{a.m, below_maximum}}, where);
    s.set_memory(a.p, Memory::Registers, where);
    s.round_to(s.stage(a.o_tiles, a.p, Memory::Registers, step, where), e4m3, where);  // l sums what is not rounded
    s.mma(a.o_tiles, wgmma, {.m = row, .n = e, .k = term}, where);
    s.at(a.s, step, where);
    s.set_memory(a.s, Memory::Registers, where);
    auto [s_b, s_h, s_i, s_j] = s.loops<4>(a.s, where);
    auto [d_tile, d] = s.split(s.reduce(a.s), shape.depth, {"d_tile", "d"}, where);
    s.order({s_b, s_h, d_tile, s_i, s_j, d}, where);
    if (a.o.operation() == a.o_tiles.operation()) {
        s.at(a.lse, group, where);
    } else {
        schedule_each_element(s, a.lse, threads_of_copies, where);
        schedule_output(s, a.o, where);
    }
    if (shape.causal && shape.keys > rounded_up(tiles.rows, tiles.keys)) {
        s.skip(step, a.s, where);
        s.cut(step, where_partial(a.s), where);
        s.reverse(step, where);  // what is masked is over before the rest begins
    }
    const Stage queries = s.stage(a.s, a.q_tiles, Memory::Shared, tile, where),
                keys = s.stage(a.s, a.k_tiles, Memory::Shared, step, where),
                values = s.stage(a.o_tiles, a.v_t, Memory::Shared, step, where);
    s.inline_stage(a.q_tiles, where), s.inline_stage(a.k_tiles, where);
    s.mma(a.s, wgmma, {.m = s_i, .n = s_j, .k = d}, where);
    s.pipeline(step, {.stages = tiles.stages}, where);
    s.delay(a.o_tiles, step, {.iterations = 1, .before = a.m}, where);  // s(j), o(j - 1), softmax(j)
    s.roles(loading_roles(s.target(), {queries, keys, values}, a.o_tiles, {.warpgroups = warpgroups}), where);
    schedule_values(s, a, where);
    return s;
}

std::optional<NamedFp8Attention> parse_fp8_attention(const std::string& name) {
    static const std::regex form("attention_e4m3(_.*?)(?:_tile([1-9][0-9]{0,2})x([1-9][0-9]{0,2})s([1-9]))?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    const auto named = parse_attention("attention_bf16" + match[1].str());
    if (!named || !named->rules.empty() || named->tiles) return {};
    NamedFp8Attention result{.shape = named->shape};
    result.shape.type = e4m3;
    if (result.shape.depth % terms_of_unit != 0 || result.shape.width % terms_of_unit != 0) return {};
    if (!match[2].matched) return result;
    result.tiles = {.rows = std::stoll(match[2]), .keys = std::stoll(match[3]), .stages = std::stoi(match[4])};
    const bool fits = result.tiles->rows % rows_of_warpgroup == 0 && result.tiles->rows <= 3 * rows_of_warpgroup &&
                      result.tiles->keys % terms_of_unit == 0 && result.tiles->keys <= 256;
    return fits ? std::optional(result) : std::nullopt;
}

}  // namespace tw::schedules

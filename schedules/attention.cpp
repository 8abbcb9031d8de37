#include "schedules/attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "schedules/loading_roles.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64, terms_of_unit = 16, bytes_of_barriers = 1024;

}  // namespace

int64_t padded_head(int64_t elements) {
    // Boxes of 128, 64 or 32 bytes, and what a step of the narrower takes longer, measured on an H200.
    constexpr std::array<std::pair<int64_t, double>, 3> boxes{{{64, 1.0}, {32, 1.08}, {16, 1.75}}};
    int64_t best = 0;
    double least = 0;
    for (const auto& [box, slower] : boxes) {
        const int64_t padded = rounded_up(elements, box);
        const double cost = as_double(padded) * slower;
        if (best == 0 || cost < least) best = padded, least = cost;
    }
    return best;
}

int64_t heads_in_l2(int64_t heads, int64_t bytes_each) {
    constexpr int64_t most = 16 << 20;
    int64_t together = 1;
    while (together * 2 * bytes_each <= most && heads % (together * 2) == 0) together *= 2;
    return together;
}

namespace {

// Of rows that see fewer keys, tiles take less time. What a tile takes beside its steps, measured on an H200, in
// quarters of a step: the next one's start overlaps its end in a persistent kernel that has room for the queries of
// both.
constexpr int64_t quarters_of_tile = 4, quarters_of_block = 7;

int64_t quarters_of_steps(const AttentionShape& shape, const AttentionTiles& tiles, int64_t block) {
    const int64_t seen = std::clamp<int64_t>((block + 1) * tiles.rows + shape.keys_before, 0, shape.keys);
    return 4 * divided(seen, tiles.keys);
}

/// Of the busiest of so many multiprocessors that take tiles in turn, the longest first, every other round the other
/// way.
int64_t longest_turn(const AttentionShape& shape, const AttentionTiles& tiles, int64_t multiprocessors) {
    const int64_t in_head = divided(shape.rows, tiles.rows), all = shape.batch * shape.heads * in_head;
    std::vector<int64_t> taken(static_cast<size_t>(multiprocessors), 0);
    for (int64_t k = 0; k < all; ++k) {
        const int64_t block = (all - 1 - k) / tiles.heads % in_head, round = k / multiprocessors,
                      place = k % multiprocessors;
        taken[static_cast<size_t>(round % 2 == 0 ? multiprocessors - 1 - place : place)] +=
            quarters_of_steps(shape, tiles, block) + (tiles.query_stages > 1 ? quarters_of_tile : quarters_of_block);
    }
    return *std::ranges::max_element(taken);
}

/// If multiprocessors take the longest that is left when they are done.
int64_t mean_of_blocks(const AttentionShape& shape, const AttentionTiles& tiles, int64_t multiprocessors) {
    int64_t total = 0;
    for (int64_t block = 0; block < divided(shape.rows, tiles.rows); ++block)
        total += shape.batch * shape.heads * (quarters_of_steps(shape, tiles, block) + quarters_of_block);
    return total / multiprocessors;
}

int64_t most_heads_in_l2(const AttentionShape& shape) {
    return heads_in_l2(shape.heads, shape.keys * (shape.depth + shape.width) * bytes_of(shape.type) / shape.group);
}

/// Each tile has a block of its own, the longest first.
void give_blocks(const AttentionShape& shape, AttentionTiles& tiles) {
    tiles.persistent = false;
    tiles.longest_first = true;
    tiles.query_stages = 1;
    tiles.heads = most_heads_in_l2(shape);
}

/// So many heads side by side that all multiprocessors end at about the same time, or blocks of their own, if the GPU
/// shares those out better than turns do.
void balance(const AttentionShape& shape, AttentionTiles& tiles, int64_t multiprocessors) {
    AttentionTiles tried = tiles;
    int64_t least = 0;
    for (int64_t heads = 1; heads <= shape.heads && shape.heads % heads == 0; heads *= 2) {
        tried.heads = heads;
        const int64_t turn = longest_turn(shape, tried, multiprocessors);
        if (heads > 1 && turn * 50 >= least * 49) continue;  // keys of fewer heads stay in L2
        tiles.heads = heads;
        least = turn;
    }
    if (least > mean_of_blocks(shape, tiles, multiprocessors)) give_blocks(shape, tiles);
}

/// Three, if they have the registers: for narrow heads. Of causal rows, whose tiles are not equally long, if there are
/// several for each multiprocessor.
int64_t most_warpgroups(const AttentionShape& shape, const Target& target) {
    constexpr int64_t three = 3 * rows_of_warpgroup;
    if (std::max(shape.depth, shape.width) > 64) return 2;
    if (!shape.causal) return shape.rows >= 4096 ? 3 : 2;
    const int64_t tiles = shape.batch * shape.heads * divided(shape.rows, three);
    return shape.rows >= 4608 && tiles >= 2 * target.multiprocessors ? 3 : 2;
}

AttentionTiles tiles_of_warpgroups(const AttentionShape& shape, int64_t warpgroups, const Target& target) {
    const int64_t depth = std::max(shape.depth, shape.width);
    AttentionTiles tiles;
    tiles.persistent = true;
    // Of few steps, those that the last one leaves unused count more than products of full width.
    const bool few = shape.keys < 768;
    const int64_t keys = depth <= 128 ? 128 : few || shape.causal ? 64 : 80;
    tiles.keys = std::min<int64_t>(keys, rounded_up(shape.keys, terms_of_unit));
    tiles.query_stages = depth <= 128 ? 2 : 1;
    tiles.stage_result = depth <= 128;
    if (shape.batch * shape.heads * divided(shape.rows, rows_of_warpgroup) <= target.multiprocessors) warpgroups = 1;
    tiles.rows = warpgroups * rows_of_warpgroup;
    tiles.exclusive = warpgroups == 3;  // measured on an H200: 4 %, causal 2 %; of two nothing
    tiles.heads = most_heads_in_l2(shape);
    // Wide sums save more products than the comparison costs, over some steps behind the first ones.
    tiles.lazy = depth > 64 && shape.keys >= 1024;
    if (shape.causal && tiles.exclusive) {  // measured: in turns they take 1.18 times as long
        give_blocks(shape, tiles);
        tiles.stage_result = shape.keys >= 16384;  // measured: 0.98 of the time there, 1.01 to 1.02 of that of fewer
    } else if (shape.causal) {
        balance(shape, tiles, target.multiprocessors);
    }
    return tiles;
}

/// Whether scores are made of more than queries and keys: elements that each thread has for rows and keys of its own.
bool reads_beside(const Attention& attention) {
    bool found = false;
    visit(attention.s.operation()->outputs[0].body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        found =
            found || (read && read->operation != attention.q.operation() && read->operation != attention.k.operation());
    });
    return found;
}

void check_tiles(const AttentionShape& shape, const AttentionTiles& tiles, std::source_location where) {
    check_attention(shape, where);
    const std::string of = "attention tiles";
    require_tiles_of_units(of, {.rows = tiles.rows, .keys = tiles.keys, .heads = tiles.heads}, shape.heads, where);
    require_sizes(of, {{"stages", tiles.stages}, {"query_stages", tiles.query_stages}}, where);
    user_check(!tiles.exclusive || tiles.rows > rows_of_warpgroup, where,
               "{}: in exclusive sections warpgroups take turns, and rows = {} are one; give {} or more, or leave "
               "`exclusive` out",
               of, tiles.rows, 2 * rows_of_warpgroup);
}

}  // namespace

void require_tiles_of_units(const std::string& of, const UnitTiles& tiles, int64_t heads, std::source_location where) {
    constexpr int64_t most = 256;
    require_sizes(of,
                  {{"rows", tiles.rows, rows_of_warpgroup, rows_of_warpgroup, most},
                   {"keys", tiles.keys, 1, tiles.multiple_of_keys, most},
                   {"heads", tiles.heads}},
                  where);
    user_check(heads % tiles.heads == 0, where, "{}: heads = {}, which side by side are not all {}; give a divisor", of,
               tiles.heads, heads);
}

AttentionTiles attention_tiles(const AttentionShape& shape, const Target& target) {
    return tiles_of_warpgroups(shape, most_warpgroups(shape, target), target);
}

AttentionTiles attention_tiles(const Attention& attention, const AttentionShape& shape, const Target& target) {
    AttentionTiles tiles = attention_tiles(shape, target);
    if (shape.causal && tiles.exclusive && reads_beside(attention))  // three would not have the registers
        tiles = tiles_of_warpgroups(shape, 2, target);
    if (attention.of_pairs.empty()) return tiles;
    // Longer steps bring more than what makes the start of a tile, and its end, faster.
    tiles.persistent = tiles.stage_result = false;
    tiles.lazy = false;  // measured: 0.553 ms instead of 0.595 with a bias
    tiles.longest_first = shape.causal;
    tiles.query_stages = 1;
    int64_t bytes_of_pair = 0;
    for (const PairInput& each : attention.of_pairs) bytes_of_pair += bytes_of(each.tensor.type());
    const int64_t element = bytes_of(shape.type), depth = padded_head(shape.depth), width = padded_head(shape.width);
    const int64_t of_tile = tiles.rows * (tiles.query_stages * depth + (tiles.stage_result ? width : 0)) * element;
    auto fits = [&](int64_t keys) {
        const int64_t stage = keys * ((depth + width) * element + tiles.rows * bytes_of_pair);
        return of_tile + tiles.stages * stage + bytes_of_barriers <= target.shared_bytes;
    };
    // Lines of 128 bytes are the fastest.
    const int64_t least = 32, step = 32;
    int64_t keys = tiles.keys;
    while (keys > least && !fits(keys)) keys = (keys - 1) / step * step;
    tiles.stage_pairs = fits(keys);
    if (tiles.stage_pairs) tiles.keys = keys;
    return tiles;
}

namespace {

/// Over batches and heads, if o has such dimensions, rows, and elements of a head.
struct ResultLoops {
    std::vector<Loop> batches, heads;
    Loop rows, width;
};
ResultLoops loops_of_result(const Schedule& s, const Attention& a, const AttentionShape& shape,
                            std::source_location where) {
    const std::vector<Loop> loops = s.data_loops(a.o, where);
    ResultLoops found{.batches = {}, .heads = {}, .rows = {}, .width = loops.back()};
    for (size_t k = 0; k + 1 < loops.size(); ++k) {
        const int place = static_cast<int>(k) + a.missing;  // among batches, rows, heads and elements
        if (place == (shape.heads_first ? 2 : 1))
            found.rows = loops[k];
        else
            (place == 0 ? found.batches : found.heads).push_back(loops[k]);
    }
    return found;
}

/// Tiles of rows, the outermost loop first, of heads that run side by side.
std::vector<Loop> loops_of_tiles(Schedule& s, const ResultLoops& loops, Loop block, int64_t heads, bool batches_last,
                                 std::source_location where) {
    std::vector<Loop> found = batches_last ? std::vector<Loop>() : loops.batches;
    std::vector<Loop> in_group;
    for (const Loop& h : loops.heads) {
        const auto [h_group, h_in_group] = s.split(h, heads, {"h_group", "h_in_group"}, where);
        found.push_back(h_group);
        in_group.push_back(h_in_group);
    }
    found.push_back(block);
    found.insert(found.end(), in_group.begin(), in_group.end());
    if (batches_last) found.insert(found.end(), loops.batches.begin(), loops.batches.end());
    return found;
}

}  // namespace

Schedule attention_schedule(const AttentionShape& shape, const AttentionTiles& tiles, const Target& target,
                            std::source_location where) {
    return attention_schedule(declare_attention(shape, {}, false, {}, {}, {}, where), shape, tiles, target, where);
}

Schedule attention_schedule(const Attention& a, const AttentionShape& shape, const AttentionTiles& tiles,
                            const Target& target, std::source_location where) {
    check_tiles(shape, tiles, where);
    const int64_t warpgroups = tiles.rows / rows_of_warpgroup;
    Schedule s(a.results(), target);
    const ResultLoops loops = loops_of_result(s, a, shape, where);
    auto [e_tile, e] = s.split(loops.width, padded_head(shape.width), Tail::Mask, {"e_tile", "e"}, where);
    auto [block, in_block] = s.split(loops.rows, tiles.rows, Tail::Mask, {"block", "in_block"}, where);
    auto [group, row] = s.split(in_block, rows_of_warpgroup, {"group", "row"}, where);
    auto [step, term] = s.split(s.reduce(a.o), tiles.keys, Tail::Mask, {"step", "term"}, where);
    // Batches that share what rules read are neighbours, so that all but one find it in L2.
    auto shared_by_batches = [](const PairInput& input) { return input.dimension[0] < 0; };
    const bool batches_last = tiles.stage_pairs && std::ranges::any_of(a.of_pairs, shared_by_batches);
    const std::vector<Loop> of_tiles = loops_of_tiles(s, loops, block, tiles.heads, batches_last, where);
    std::vector<Loop> order = of_tiles;
    order.insert(order.end(), {e_tile, group, step, row, e, term});
    s.order(order, where);
    const int64_t blocks = shape.batch * shape.heads * divided(shape.rows, tiles.rows);
    Loop tile = of_tiles.back();
    if (tiles.persistent) {
        s.persistent(of_tiles, {.longest_first = shape.causal, .stages = tiles.query_stages, .dynamic = tiles.dynamic},
                     where);
    } else if (tiles.longest_first) {
        s.persistent(of_tiles, {.blocks = static_cast<int>(blocks), .longest_first = true}, where);
    } else {
        tile = s.fuse(of_tiles, "tile", where);
        s.bind(tile, grid.x, where);
    }
    s.bind(group, warpgroup, where);
    const Reference lazy = Reference::lazy(8 / a.to_base_2);
    s.stream({a.m, a.l, a.o}, step, {{a.m, tiles.lazy ? lazy : Reference::running()}}, where);
    s.set_memory(a.p, Memory::Registers, where);
    s.round_to(s.stage(a.o, a.w, Memory::Registers, step, where), shape.type, where);  // l sums what is not rounded
    if (a.w.operation() != a.p.operation()) s.inline_stage(a.w, where);
    s.mma(a.o, wgmma, {.m = row, .n = e, .k = term}, where);
    s.at(a.s, step, where);
    s.set_memory(a.s, Memory::Registers, where);
    auto [s_b, s_h, s_i, s_j] = s.loops<4>(a.s, where);
    auto [d_tile, d] = s.split(s.reduce(a.s), padded_head(shape.depth), Tail::Mask, {"d_tile", "d"}, where);
    s.order({s_b, s_h, d_tile, s_i, s_j, d}, where);
    if (a.of_rows) {
        for (const Tensor& of_row : *a.of_rows) s.at(of_row, group, where);
    } else {
        s.at(a.lse, group, where);
        if (a.softmax.defined()) s.at({a.softmax.top, a.softmax.spread}, group, Memory::Auto, where);
    }
    if (a.skips && shape.keys > rounded_up(tiles.rows, tiles.keys)) {
        s.skip(step, a.s, where);
        s.cut(step, where_partial(a.s), where);
        s.reverse(step, where);  // what is masked is over before the rest begins
    } else if (shape.keys % tiles.keys != 0 && shape.keys > tiles.keys) {
        s.cut(step, where_partial(a.s), where);
        s.reverse(step, where);
    }
    Stage queries = s.stage(a.s, a.q, Memory::Shared, tile, where);
    if (tiles.stage_result) s.via(s.stage(a.o, Memory::Shared, tile, where), Copy::Tma, where);
    Stage keys = s.stage(a.s, a.k, Memory::Shared, step, where),
          values = s.stage(a.o, a.v, Memory::Shared, step, where);
    std::vector<StageRef> loaded{queries, keys, values};
    for (const LineInput& line : a.of_lines.of_keys) loaded.push_back(stage_line(s, line, {a.s}, step, where));
    for (const LineInput& line : a.of_lines.of_rows) keep_line(s, line, {a.s}, group, where);
    for (const PairInput& pairs : tiles.stage_pairs ? a.of_pairs : std::vector<PairInput>())
        loaded.push_back(s.stage(a.s, pairs.tensor, Memory::Shared, step, where));
    for (const Tensor& operand : {a.q, a.k, a.v}) inline_view(s, operand, where);
    s.mma(a.s, wgmma, {.m = s_i, .n = s_j, .k = d}, where);
    s.pipeline(step, {.stages = tiles.stages}, where);
    // With masks at both ends of the loop, ptxas does not find the registers for two iterations at once.
    const bool masks_both_ends = a.skips && !shape.causal;
    if (tiles.overlaps && !masks_both_ends)
        s.delay(a.o, step, {.iterations = 1, .before = a.m}, where);  // s(j), o(j - 1), softmax(j)
    s.roles(loading_roles(s.target(), loaded, a.o, {.warpgroups = warpgroups}), where);
    if (tiles.exclusive) s.exclusive({a.s, a.o}, where);
    return s;
}

}  // namespace tw::schedules

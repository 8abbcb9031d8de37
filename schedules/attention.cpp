#include "schedules/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <regex>

#include "schedules/loading_roles.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64, terms_of_unit = 16, bytes_of_barriers = 1024;

}  // namespace

double AttentionShape::flops() const {
    double pairs = as_double(rows) * as_double(keys);
    if (causal) {
        // Under the diagonal: the integral of min(max(i + keys_before, 0), keys) over rows.
        auto up_to = [&](int64_t row) {
            const double seen = as_double(std::clamp<int64_t>(row + keys_before, 0, keys));
            return seen * seen / 2 + as_double(std::max<int64_t>(row + keys_before - keys, 0)) * as_double(keys);
        };
        pairs = up_to(rows) - up_to(0);
    }
    return 2 * as_double(batch) * as_double(heads) * pairs * as_double(depth + width);
}

double AttentionShape::bytes() const {
    double of_rows = as_double(rows) * as_double(heads) * as_double(depth + width);
    double of_keys = as_double(keys) * as_double(heads / group) * as_double(depth + width);
    return as_double(batch) * ((of_rows + of_keys) * bytes_of(type) + as_double(heads) * as_double(rows) * 4);
}

Shape AttentionShape::of_tokens(int64_t count, int64_t of_heads, int64_t of_head) const {
    return heads_first ? Shape{batch, of_heads, count, of_head} : Shape{batch, count, of_heads, of_head};
}

Expr AttentionShape::at(const Tensor& of_tokens, const Expr& b, const Expr& token, const Expr& head,
                        const Expr& x) const {
    return heads_first ? of_tokens(b, head, token, x) : of_tokens(b, token, head, x);
}

std::array<Loop, 4> AttentionShape::loops_of(const Schedule& s, const Tensor& of_tokens,
                                             std::source_location where) const {
    const auto [b, second, third, x] = s.loops<4>(of_tokens, where);
    return heads_first ? std::array{b, third, second, x} : std::array{b, second, third, x};
}

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

SoftmaxSum with_score(const SoftmaxSum& of_keys, const Expr& score) {
    const Expr base_2 = score * std::log2(std::exp(1.0)), top = max(of_keys.top, base_2);
    return {top, of_keys.sum * exp2(of_keys.top - top) + exp2(base_2 - top)};
}

void check_sinks(const AttentionShape& shape, const Tensor& sinks) {
    if (!sinks.defined()) return;
    if (sinks.type() != f32 || sinks.rank() != 1 || !is_constant(sinks.shape()[0], shape.heads))
        throw_error(Error, "attention: sinks '{}' are {} of {} dimensions; give a score for each head, f32 [{}]",
                    sinks.name(), name_of(sinks.type()), sinks.rank(), shape.heads);
}

Attention declare_attention(const AttentionShape& shape, const ScoreRule& rule, bool rule_skips,
                            const WeightRule& weight_rule, const Tensor& sinks) {
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    if (G < 1 || H % G != 0) throw_error(Error, "attention: {} heads are no multiple of a group of {}", H, G);
    check_sinks(shape, sinks);
    Attention a;
    a.skips = causal || rule_skips;
    a.q = input("q", type, shape.of_tokens(S, H, D));
    a.k = input("k", type, shape.of_tokens(N, H / G, D));
    a.v = input("v", type, shape.of_tokens(N, H / G, E));
    Axis d = reduce_axis("d", D), j1 = reduce_axis("j1", N), j2 = reduce_axis("j2", N), j3 = reduce_axis("j3", N);
    // Without a rule, one factor serves both the depth and the exponential's base.
    const double to_score = 1 / std::sqrt(as_double(D)), to_base_2 = std::log2(std::exp(1.0)),
                 scale = rule ? to_base_2 : to_base_2 * to_score;
    a.to_base_2 = scale;
    a.s = compute("s", {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        Expr score = sum(cast(f32, shape.at(a.q, b, i, h, d)) * cast(f32, shape.at(a.k, b, j, h / shape.group, d)), d);
        if (rule) score = rule(score * to_score, {b, h, i, j});
        a.of_pairs = inputs_of_pairs(score, {b, h, i, j});
        score = with_line_inputs(score, {b, h, i, j}, a.of_lines);
        return shape.causal ? select(j <= i + shape.keys_before, score, -infinity) : score;
    });
    a.m = compute("m", {B, H, S}, [&](Expr b, Expr h, Expr i) { return reduce_max(a.s(b, h, i, j1), j1); });
    a.p = compute("p", {B, H, S, N},
                  [&](Expr b, Expr h, Expr i, Expr j) { return exp2(a.s(b, h, i, j) * scale - a.m(b, h, i) * scale); });
    a.w = a.p;
    if (weight_rule)
        a.w = compute("w", {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
            return weight_rule(a.p(b, h, i, j), {b, h, i, j});
        });
    a.l = compute("l", {B, H, S}, [&](Expr b, Expr h, Expr i) { return sum(a.p(b, h, i, j2), j2); });
    // Of a row without keys all terms are 0.
    auto of_seen = [&](const Expr& b, const Expr& h, const Expr& i, const Expr& sum) {
        return rule || shape.has_empty_rows() ? select(a.m(b, h, i) == -infinity, 0.0, sum) : sum;
    };
    auto divided_by = [&](const Expr& b, const Expr& h, const Expr& i) {
        const SoftmaxSum of_keys{a.m(b, h, i) * scale, of_seen(b, h, i, a.l(b, h, i))};
        return sinks.defined() ? with_score(of_keys, sinks(h)) : of_keys;
    };
    a.o = compute("o", shape.of_tokens(S, H, E), [&](Expr b, Expr x, Expr y, Expr e) {
        const auto& [i, h] = shape.heads_first ? std::pair(y, x) : std::pair(x, y);
        Expr values = sum(a.w(b, h, i, j3) * cast(f32, shape.at(a.v, b, j3, h / shape.group, e)), j3);
        if (!sinks.defined()) return cast(shape.type, of_seen(b, h, i, values * (1.0 / a.l(b, h, i))));
        const SoftmaxSum whole = divided_by(b, h, i);
        return cast(shape.type, of_seen(b, h, i, values * (exp2(a.m(b, h, i) * scale - whole.top) / whole.sum)));
    });
    a.lse = compute("lse", {B, H, S}, [&](Expr b, Expr h, Expr i) {
        const SoftmaxSum whole = divided_by(b, h, i);
        return whole.top + log2(whole.sum);
    });
    return a;
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
    if (least <= mean_of_blocks(shape, tiles, multiprocessors)) return;
    tiles.persistent = false;
    tiles.longest_first = true;
    tiles.query_stages = 1;
    tiles.heads = most_heads_in_l2(shape);
}

}  // namespace

AttentionTiles attention_tiles(const AttentionShape& shape, const Target& target) {
    const int64_t depth = std::max(shape.depth, shape.width);
    AttentionTiles tiles;
    tiles.persistent = true;
    // Of few steps, those that the last one leaves unused count more than products of full width.
    const bool few = shape.keys < 768;
    const int64_t keys = depth <= 128 ? 128 : few || shape.causal ? 64 : 80;
    tiles.keys = std::min<int64_t>(keys, rounded_up(shape.keys, terms_of_unit));
    tiles.query_stages = depth <= 128 ? 2 : 1;
    tiles.stage_result = depth <= 128;
    if (shape.batch * shape.heads * divided(shape.rows, rows_of_warpgroup) <= target.multiprocessors)
        tiles.rows = rows_of_warpgroup;
    else if (depth <= 64 && !shape.causal && shape.rows >= 4096)
        tiles.rows = 3 * rows_of_warpgroup;
    tiles.heads = most_heads_in_l2(shape);
    // Wide sums save more products than the comparison costs, over some steps behind the first ones.
    tiles.lazy = depth > 64 && shape.keys >= 1024;
    if (shape.causal) balance(shape, tiles, target.multiprocessors);
    return tiles;
}

AttentionTiles attention_tiles(const Attention& attention, const AttentionShape& shape, const Target& target) {
    AttentionTiles tiles = attention_tiles(shape, target);
    if (attention.of_pairs.empty()) return tiles;
    // Longer steps bring more than what makes the start of a tile, and its end, faster.
    tiles.persistent = tiles.stage_result = false;
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

Schedule attention_schedule(const AttentionShape& shape, const AttentionTiles& tiles, const Target& target,
                            std::source_location where) {
    return attention_schedule(declare_attention(shape), shape, tiles, target, where);
}

Schedule attention_schedule(const Attention& a, const AttentionShape& shape, const AttentionTiles& tiles,
                            const Target& target, std::source_location where) {
    require_sizes("attention tiles",
                  {{"rows", tiles.rows, rows_of_warpgroup},
                   {"keys", tiles.keys},
                   {"stages", tiles.stages},
                   {"query_stages", tiles.query_stages},
                   {"heads", tiles.heads}},
                  where);
    const int64_t warpgroups = tiles.rows / rows_of_warpgroup;
    Schedule s({a.o, a.lse}, target);
    auto [b, i, h, width] = shape.loops_of(s, a.o, where);
    auto [e_tile, e] = s.split(width, padded_head(shape.width), Tail::Mask, {"e_tile", "e"}, where);
    auto [block, in_block] = s.split(i, tiles.rows, Tail::Mask, {"block", "in_block"}, where);
    auto [group, row] = s.split(in_block, rows_of_warpgroup, {"group", "row"}, where);
    auto [step, term] = s.split(s.reduce(a.o), tiles.keys, Tail::Mask, {"step", "term"}, where);
    auto [h_group, h_in_group] = s.split(h, tiles.heads, {"h_group", "h_in_group"}, where);
    // Batches that share what rules read are neighbours, so that all but one find it in L2.
    auto shared_by_batches = [](const PairInput& input) { return input.dimension[0] < 0; };
    const bool batches_last = tiles.stage_pairs && std::ranges::any_of(a.of_pairs, shared_by_batches);
    const std::vector<Loop> of_tiles = batches_last ? std::vector<Loop>{h_group, block, h_in_group, b}
                                                    : std::vector<Loop>{b, h_group, block, h_in_group};
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
    s.at(a.lse, group, where);
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
    s.mma(a.s, wgmma, {.m = s_i, .n = s_j, .k = d}, where);
    s.pipeline(step, {.stages = tiles.stages}, where);
    // With masks at both ends of the loop, ptxas does not find the registers for two iterations at once.
    const bool masks_both_ends = a.skips && !shape.causal;
    if (tiles.overlaps && !masks_both_ends)
        s.delay(a.o, step, {.iterations = 1, .before = a.m}, where);  // s(j), o(j - 1), softmax(j)
    s.roles(loading_roles(s.target(), loaded, a.o, {.warpgroups = warpgroups}), where);
    return s;
}

NamedRule rule_of(const NamedAttention& named) {
    static const std::regex each("_([a-z]+)([0-9]*)(a?)");
    const AttentionShape& shape = named.shape;
    std::vector<ScoreRule> rules;
    bool skips = false;
    Tensor sinks;
    for (std::sregex_iterator rule(named.rules.begin(), named.rules.end(), each); rule != std::sregex_iterator();
         ++rule) {
        const std::string name = (*rule)[1], number = (*rule)[2];
        if (name == "softcap")
            rules.push_back((*rule)[3].length() ? soft_cap_approx(std::stod(number)) : soft_cap(std::stod(number)));
        if (name == "alibi") rules.push_back(linear_bias(input("slopes", f32, {shape.heads})));
        if (name == "bias")
            rules.push_back(additive_bias(input("bias", shape.type, {1, shape.heads, shape.rows, shape.keys})));
        if (name == "sinks") sinks = input("sinks", f32, {shape.heads});
        if (name == "window") rules.push_back(sliding_window(std::stoll(number))), skips = true;
        if (name != "documents") continue;
        const Tensor numbers = input("documents", i32, {shape.batch, shape.rows});
        rules.push_back(documents(numbers, numbers));
    }
    return {rules.empty() ? ScoreRule() : in_turn(rules), skips, sinks};
}

std::optional<NamedAttention> parse_attention(const std::string& name) {
    static const std::string number_text = "([1-9][0-9]{0,6})", by = "x" + number_text;
    static const std::regex form("attention_(bf16|f16)_" + number_text + by + by + by + "(?:_keys" + number_text +
                                 ")?(?:_width" + number_text + ")?(?:_group" + number_text +
                                 ")?(_causal(?:_lower_right)?)?(_heads_first)?((?:_softcap[0-9]+a?|_alibi|_bias|_"
                                 "documents|_window[0-9]+)*(?:_sinks)?)(?:_tile" +
                                 number_text + by + "s([1-9])(n)?(p)?(q)?(l)?(r)?(?:h([1-9][0-9]*))?(b)?(d)?(z)?)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto number = [&](size_t index, int64_t otherwise) {
        return match[index].matched ? std::stoll(match[index]) : otherwise;
    };
    NamedAttention named{.shape = {.batch = number(2, 0),
                                   .heads = number(3, 0),
                                   .rows = number(4, 0),
                                   .keys = number(6, number(4, 0)),
                                   .depth = number(5, 0),
                                   .width = number(7, number(5, 0)),
                                   .group = number(8, 1),
                                   .causal = match[9].matched,
                                   .type = match[1] == "bf16" ? bf16 : f16,
                                   .heads_first = match[10].matched},
                         .rules = match[11]};
    if (match[9] == "_causal_lower_right") named.shape.keys_before = named.shape.keys - named.shape.rows;
    const AttentionShape& shape = named.shape;
    if (shape.heads % shape.group != 0 || shape.depth % 8 != 0 || shape.width % 8 != 0) return {};
    if (std::max(shape.depth, shape.width) > 256) return {};
    if (match[12].matched) {
        named.tiles = AttentionTiles{.rows = number(12, 0),
                                     .keys = number(13, 0),
                                     .stages = static_cast<int>(number(14, 0)),
                                     .overlaps = !match[15].matched,
                                     .persistent = match[16].matched,
                                     .query_stages = match[17].matched ? 2 : 1,
                                     .longest_first = match[18].matched,
                                     .stage_result = match[19].matched,
                                     .heads = number(20, 1),
                                     .stage_pairs = match[21].matched,
                                     .dynamic = match[22].matched,
                                     .lazy = match[23].matched};
        if (named.tiles->dynamic && !named.tiles->persistent) return {};
        if (named.tiles->rows % rows_of_warpgroup != 0 || named.tiles->rows > 3 * rows_of_warpgroup) return {};
        if (shape.heads % named.tiles->heads != 0) return {};
    }
    return named;
}

}  // namespace tw::schedules

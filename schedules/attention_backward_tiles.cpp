// The tiles of attention's gradients, and their names.
#include <algorithm>
#include <regex>

#include "schedules/attention_backward.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64, bytes_of_barriers = 1024;
constexpr int64_t neighbours = 8;

}  // namespace

void require_gradient_tiles(const GradientTiles& tiles, std::source_location where) {
    require_sizes("tiles of gradients",
                  {{"key_rows", tiles.key_rows},
                   {"key_step", tiles.key_step},
                   {"query_rows", tiles.query_rows},
                   {"query_step", tiles.query_step},
                   {"stages", tiles.stages}},
                  where);
}

void require_tiles_of_units(const GradientTiles& tiles, std::source_location where) {
    constexpr int64_t most = 256, terms_of_unit = 16;
    require_sizes("tiles of gradients",
                  {{"key_rows", tiles.key_rows, 1, rows_of_warpgroup, most},
                   {"key_step", tiles.key_step, 1, terms_of_unit, most},
                   {"query_rows", tiles.query_rows, 1, rows_of_warpgroup, most},
                   {"query_step", tiles.query_step, 1, terms_of_unit, most},
                   {"stages", tiles.stages}},
                  where);
}

namespace {

/// Of heads this deep, making scores again takes longer than writing their adjoints down, in whole lines, and reading
/// them.
constexpr int64_t kept_from_depth = 65;

/// Masks of causal scores leave out whole tiles of the kernel that reads, if both kernels have the same; others may
/// not.
bool keeps_adjoints(const AttentionShape& shape, bool rule_skips, int64_t most_kept_bytes) {
    const int64_t bytes = shape.batch * shape.heads * shape.rows * shape.keys * bytes_of(shape.type);
    return std::max(shape.depth, shape.width) >= kept_from_depth && shape.rows % neighbours == 0 && !rule_skips &&
           bytes <= most_kept_bytes;
}

/// Of a thread's registers, slopes of scores take as many as the scores. Measured, for head size 128: 2.24 ms instead
/// of 2.46, 2.44 instead of 2.67.
int64_t step_with_slopes(const AttentionShape& shape) {
    const int64_t depth = std::max(shape.depth, shape.width);
    return depth <= 96 ? 64 : 48;
}

}  // namespace

GradientTiles gradient_tiles(const AttentionShape& shape, const Target& target, bool rule_skips,
                             int64_t most_kept_bytes) {
    const int64_t depth = std::max(shape.depth, shape.width);
    GradientTiles tiles;
    tiles.passes.together = depth <= 128;  // else sums of both do not fit into registers
    tiles.key_step = depth <= 64 ? 128 : depth <= 128 ? 64 : 48;
    tiles.query_step = depth <= 128 ? 128 : 48;
    // Rather two blocks side by side than one that is twice as high.
    auto suited = [&](int64_t rows, int64_t heads, int64_t tile) {
        const int64_t blocks = shape.batch * heads * divided(rows, rows_of_warpgroup);
        return blocks <= target.multiprocessors ? rows_of_warpgroup : tile;
    };
    tiles.query_rows = suited(shape.rows, shape.heads, tiles.query_rows);
    tiles.key_rows = suited(shape.keys, shape.heads / shape.group, tiles.key_rows);
    // Diagonals through the corners of tiles leave out whole ones of both kernels.
    const bool whole = !shape.causal || (shape.keys_before >= 0 && shape.keys_before % tiles.key_rows == 0);
    tiles.passes.kept = whole && keeps_adjoints(shape, rule_skips, most_kept_bytes);
    if (tiles.passes.kept && shape.causal) tiles.query_rows = tiles.query_step = tiles.key_rows;
    if (tiles.passes.kept && !shape.causal) tiles.query_step = rows_of_warpgroup;
    return tiles;
}

GradientTiles gradient_tiles(const AttentionShape& shape, const Target& target, const ScoreRule& rule, bool rule_skips,
                             int64_t most_kept_bytes) {
    GradientTiles tiles = gradient_tiles(shape, target, rule_skips, most_kept_bytes);
    if (!rule) return tiles;
    const std::vector<PairInput> of_pairs = declare_attention(shape, rule, rule_skips).of_pairs;
    if (tiles.passes.together && slope_depends_on_score(rule)) tiles.key_step = step_with_slopes(shape);
    int64_t bytes_of_pair = 0;
    for (const PairInput& each : of_pairs) bytes_of_pair += bytes_of(each.tensor.type());
    const int64_t of_head = (padded_head(shape.depth) + padded_head(shape.width)) * bytes_of(shape.type);
    const int64_t numbers = may_add_far(rule) ? 3 * 4 : 2 * 4;  // lse, or top and spread, and delta
    auto fits = [&](int64_t step) {
        const int64_t stage = step * (of_head + tiles.key_rows * bytes_of_pair + numbers);
        return tiles.key_rows * of_head + tiles.stages * stage + bytes_of_barriers <= target.shared_bytes;
    };
    while (tiles.key_step > 32 && !fits(tiles.key_step)) tiles.key_step -= 16;
    tiles.stage_pairs = !of_pairs.empty() && fits(tiles.key_step);
    return tiles;
}

std::optional<NamedAttentionGradients> parse_attention_gradients(const std::string& name) {
    static const std::regex form(
        "attention_gradients(_.*?)(?:_tile(\\d+)x(\\d+)q(\\d+)x(\\d+)s([1-9])(a)?(k)?(u)?(b)?)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    const auto forward = parse_attention("attention" + match[1].str());
    if (!forward || forward->tiles) return {};
    NamedAttentionGradients named{.forward = *forward, .tiles = {}};
    if (match[2].matched) {
        named.tiles = GradientTiles{
            .key_rows = std::stoll(match[2]),
            .key_step = std::stoll(match[3]),
            .query_rows = std::stoll(match[4]),
            .query_step = std::stoll(match[5]),
            .stages = std::stoi(match[6]),
            .passes = {.together = !match[7].matched, .kept = match[8].matched, .added = match[9].matched},
            .stage_pairs = match[10].matched};
        for (int64_t rows : {named.tiles->key_rows, named.tiles->query_rows})
            if (rows % rows_of_warpgroup != 0 || rows > 3 * rows_of_warpgroup || rows == 0) return {};
    }
    return named;
}

}  // namespace tw::schedules

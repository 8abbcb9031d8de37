// The gradients of attention whose tiles go through what tables name, be it of packed sequences or of ranges: dq by
// tiles of rows, which go through keys, dk and dv by tiles of keys, which go through rows. Scores are made again from
// what the forward pass saved. The same bits in every run.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "schedules/attention_backward.h"

namespace tw::schedules {

/// Of each kernel its own: f32 [heads, rows, keys from the tile's first], or of keys [heads, rows from the tile's
/// first, keys], with batches in front where there are any.
struct WalkedScores {
    Tensor s, p, dp, ds;
    Tensor w;                     ///< what values are multiplied by: p, or what a rule makes of it
    std::vector<Tensor> kept;     ///< tables, and views of inputs, of which a thread needs those of its row, or key
    std::vector<Tensor> brought;  ///< views of inputs, of which a step needs those that it goes through
};
/// What the schedule is given: dq, dk and dv, and what they are made of. Where the tensor memory accelerator wants rows
/// longer than there are, delta has a few more.
struct WalkedGradients {
    Tensor q, k, v, g, o, lse;
    Tensor delta;
    std::vector<RowNumber> row_numbers;  ///< by a rule that may add far, top and spread
    Tensor k_tile, v_tile;               ///< of each tile of rows, from its first key on
    Tensor q_tile, g_tile;               ///< of each tile of keys, from its first row on
    Tensor delta_tile;                   ///< [tiles, heads, rows]
    WalkedScores of_queries, of_keys, of_values;
    Tensor dq, dk, dv;
    Tensor d_sinks;  ///< f32 [heads], if there are sinks
};

/// How tensors lie, and what tiles are chosen by: with batches in front of all, tokens in front of their heads or
/// behind.
struct WalkedShape {
    int64_t group, depth, width;
    Type type;
    bool batches = false, heads_first = false;
};

/// Scores of one kernel, and what rules make of them, by the indices of its elements. `place` is where one stands;
/// `row_numbers` and `delta` are those of its row.
struct ScoresAt {
    using Indices = std::vector<Expr>;
    std::string suffix;
    Shape extents;
    std::function<ScorePlace(const Indices& at)> place;
    std::function<Expr(const Indices&at)> score, of_values, delta, is_seen;
    std::function<std::vector<Expr>(const Indices& at)> row_numbers;
    /// Has a value read views in the place of what rules read: nothing, if they read tensors as they are.
    std::function<Expr(const Expr& value, const Indices& at)> by_views = {};
};
WalkedScores declare_walked_scores(int64_t depth, const AttentionRules& rules, const ScoresAt& at);

/// For sm_90a: as attention_gradients_schedule, with as many steps for each tile as its axes say.
Schedule walked_gradients_schedule(const WalkedGradients& gradients, const WalkedShape& shape,
                                   const GradientTiles& tiles, const Target& target, TW_HERE);

/// Tiles of attention without masks, but that they have as many rows as tables of the forward pass, `rows`, and as many
/// keys as tables of keys have. Adjoints of scores are never kept.
GradientTiles walked_gradient_tiles(const AttentionShape& shape, int64_t rows, const Target& target);
struct WalkedName {
    std::string forward;                 ///< what is left of the name
    std::optional<GradientTiles> tiles;  ///< if the name tells them
};
/// Reads "..._tile128x64q128x64s2" as parse_attention_gradients does, with "a" for dk and dv apart. Nothing if there
/// are no such tiles.
std::optional<WalkedName> parse_walked_tiles(const std::string& name);

}  // namespace tw::schedules

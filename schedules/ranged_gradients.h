// The gradients of attention whose tiles go through what tables name: tiles of rows through the forward pass's ranges
// of keys, tiles of keys through the rows whose tiles go through them.
#pragma once
#include <optional>
#include <string>

#include "schedules/attention_ranged.h"
#include "schedules/walked_gradients.h"

namespace tw::schedules {

/// Given q, k, v and `ranges` as of declare_ranged_attention, its results o and lse, and g = dL/do of o's shape: dq, dk
/// and dv, the gradients of L, of the shapes and the type of q, k and v. A kernel makes the table by keys of `ranges`,
/// if it is not given.
struct RangedGradients : WalkedGradients {
    Tensor ranges, ranges_of_keys;
    TileRanges of_tiles;  ///< what makes ranges_of_keys, unless that is given
};
/// What gradients are made of: what is not given is an input, but for ranges_of_keys.
struct RangedSaved {
    Tensor q = {}, k = {}, v = {}, g = {}, o = {}, lse = {};
    SavedSoftmax softmax = {};
    Tensor ranges = {}, ranges_of_keys = {};
    std::string suffix = {};  ///< of the names of all
};
/// As of attention without masks, but that tiles have as many rows as ranged_tiles gives them: so one table serves both
/// passes. Adjoints of scores are never kept.
GradientTiles ranged_gradient_tiles(const AttentionShape& shape, const Target& target);
/// Ranges are of tiles of query_rows rows, those of keys of key_rows keys and whole tiles of rows. With rules as of
/// declare_ranged_attention. Throws Error as declare_attention, if a size of the tiles is not positive, if they ask for
/// adjoints that are kept or added up, or if a table has another type or shape.
RangedGradients declare_ranged_gradients(const AttentionShape& shape, const GradientTiles& tiles,
                                         const AttentionRules& rules, const RangedSaved& saved = {}, TW_HERE);
/// o of the attention, with these gradients of q, k and v, and of sinks, so that gradients() passes it, by the rules
/// that it was declared with. Of what rules read besides gradients() refuses to make any. Throws Error if its tiles are
/// not of query_rows rows.
Tensor with_ranged_gradients(const RangedAttention& attention, const AttentionShape& shape, const VarlenTiles& forward,
                             const GradientTiles& tiles, TW_HERE);
/// For sm_90a: as attention_gradients_schedule, with as many steps for each tile as it needs.
Schedule ranged_gradients_schedule(const RangedGradients& gradients, const AttentionShape& shape,
                                   const GradientTiles& tiles, const Target& target, TW_HERE);

struct NamedRangedGradients {
    NamedAttention forward;
    std::optional<GradientTiles> tiles;  ///< if the name tells them
};
/// Reads "attention_ranged_gradients_bf16_BATCHxHEADSxROWSxDEPTH" as parse_ranged reads the forward pass, and tiles as
/// parse_varlen_gradients does. Nothing if it is no such name.
std::optional<NamedRangedGradients> parse_ranged_gradients(const std::string& name);

}  // namespace tw::schedules

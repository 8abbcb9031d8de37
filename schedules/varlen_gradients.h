// The gradients of attention of packed sequences: tiles of rows go through the keys that they see, tiles of keys
// through the rows that see them.
#pragma once
#include <optional>
#include <string>

#include "schedules/attention_varlen.h"
#include "schedules/walked_gradients.h"

namespace tw::schedules {

/// Given q, k, v and the tables `tiles` and `seen` as of declare_varlen_attention, its results o and lse, g = dL/do of
/// o's shape, and the tables of keys, tiles_of_keys and seen_of_keys: dq, dk and dv, the gradients of L, of the shapes
/// and the type of q, k and v. delta[h, i] = sum_e g[i, h, e] o[i, h, e]. Rows that see no key, and keys that no row
/// sees, have gradients 0. Gradients of rows that others of a tile see count 0 times: they are finite.
struct VarlenGradients : WalkedGradients {
    Tensor tiles, seen, tiles_of_keys, seen_of_keys, places, places_of_keys;
};
/// What gradients are made of, as of VarlenGradients: what is not given is an input. Tables are i32, of the shapes of
/// VarlenTables.
struct VarlenSaved {
    Tensor q = {}, k = {}, v = {}, g = {}, o = {}, lse = {};
    SavedSoftmax softmax = {};
    Tensor tiles = {}, seen = {}, tiles_of_keys = {}, seen_of_keys = {}, places = {}, places_of_keys = {};
};
/// As of attention without masks, but that tiles have as many rows as varlen_tiles gives them, and as many keys as
/// names of tables take: so one table serves both passes. Adjoints of scores are never kept, which are of no rows by
/// keys here.
GradientTiles varlen_gradient_tiles(const VarlenShape& shape, const Target& target);
/// Tables are of tiles of query_rows rows, and of key_rows keys. With rules as of declare_varlen_attention: `s` is what
/// the one for scores is given then, and `ds` the adjoint of that; it may read the tables `places` and
/// `places_of_keys`. Throws Error as declare_varlen_attention does, if tiles ask for adjoints that are kept or added
/// up, or if an operand or a table has another type or shape.
VarlenGradients declare_varlen_gradients(const VarlenShape& shape, const GradientTiles& tiles,
                                         const VarlenSaved& saved = {}, const AttentionRules& rules = {}, TW_HERE);
/// o of the attention, with these gradients of q, k and v, and of sinks, so that gradients() passes it, by the rules
/// that it was declared with; they are given tiles_of_keys, seen_of_keys and places_of_keys. Of what rules read besides
/// gradients() refuses to make any. Throws Error if its tiles are not of query_rows rows.
Tensor with_varlen_gradients(const VarlenAttention& attention, const VarlenShape& shape, const VarlenTiles& forward,
                             const GradientTiles& tiles, TW_HERE);
/// For sm_90a: as attention_gradients_schedule, with as many steps for each tile as it needs, by as legal tiles.
Schedule varlen_gradients_schedule(const VarlenGradients& gradients, const VarlenShape& shape,
                                   const GradientTiles& tiles, const Target& target, TW_HERE);
/// Products and sums of the five products of matrices that rows and keys of the sequences need.
double varlen_gradients_flops(const VarlenShape& shape, const Offsets& of_rows, const Offsets& of_keys,
                              const SeenKeys& seen);

struct NamedVarlenGradients {
    VarlenShape shape;
    std::string rules = {};              ///< as the name lists them
    std::optional<GradientTiles> tiles;  ///< if the name tells them
};
/// Reads "attention_varlen_gradients_bf16_ROWSxHEADSxDEPTH" as parse_varlen reads the forward pass, but for the tiles:
/// "_tile128x64q128x64s2" as parse_attention_gradients does, with "a" for dk and dv apart.
std::optional<NamedVarlenGradients> parse_varlen_gradients(const std::string& name);

}  // namespace tw::schedules

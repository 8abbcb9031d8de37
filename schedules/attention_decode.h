// Attention of one row to many keys, as a model that writes one token at a time needs it: of each sequence and head of
// keys, all heads of a group are the rows of a tile, and where sequences are few, blocks share the keys of one (split
// KV, "flash decoding"; Dao et al. 2023).
#pragma once
#include "schedules/attention.h"

namespace tw::schedules {

/// The attention of declare_attention in parts of `keys_of_part` keys, each with its own maxima (m), sums (l) and
/// values (o_part), and what they come to. Each member is a computation.
struct AttentionInParts {
    Tensor q, k, v, k_part, v_part, s, m, p, l, o_part, top, weight, total, values, o, lse;
};
/// Sinks as of declare_attention. Throws Error if the shape has several rows, or is causal, or heads are no multiple of
/// the group.
AttentionInParts declare_attention_in_parts(const AttentionShape& shape, int64_t keys_of_part, const Tensor& sinks = {},
                                            TW_HERE);

/// Declares what the parts come to: top, weight, total, values, o and lse, of m, l and o_part. With `may_be_empty`,
/// also of rows that see no key: o = 0, lse = -infinity.
void declare_merged_parts(const AttentionShape& shape, AttentionInParts& parts, const Tensor& sinks = {},
                          bool may_be_empty = false);

struct DecodeTiles {
    int64_t keys = 64;  ///< of a step
    int stages = 3;     ///< of keys and values
    int64_t parts = 1;  ///< blocks that share the keys of a sequence
};
/// Throws Error if a size is not positive.
void require_decode_tiles(const DecodeTiles& tiles, TW_HERE);
DecodeTiles decode_tiles(const AttentionShape& shape, const Target& target);
/// For sm_90a, of shapes of one row: warpgroup products of up to 64 heads of a group, loads by a warp of its own.
/// Results o and lse.
Schedule decode_schedule(const AttentionShape& shape, const DecodeTiles& tiles, const Target& target,
                         const Tensor& sinks = {}, TW_HERE);

/// Of parts declared for the shape and these tiles, by any source of keys.
Schedule decode_schedule(const AttentionInParts& parts, const AttentionShape& shape, const DecodeTiles& tiles,
                         const Target& target, TW_HERE);

/// One row that sees all keys.
bool is_decode(const AttentionShape& shape);

}  // namespace tw::schedules

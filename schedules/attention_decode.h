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
    Tensor w;              ///< what values are multiplied by: p, or what a rule makes of it
    AttentionRules rules;  ///< as declared
    std::string suffix;    ///< of the names of all
};
/// Rules as of declare_attention: the row, 0, stands at the last key, so that a window is of the last keys. With
/// operands of the user's own, too. Throws Error if the shape has several rows, or is causal, or as declare_attention.
AttentionInParts declare_attention_in_parts(const AttentionShape& shape, int64_t keys_of_part,
                                            const AttentionRules& rules = {}, const AttentionOperands& operands = {},
                                            TW_HERE);

/// Where the score of a part's key stands.
using PlaceInPart = std::function<ScorePlace(const Expr& b, const Expr& head, const Expr& c, const Expr& j)>;
/// Declares the scores of parts and what they come to: s, m, p, w, l and o_part, of q, k_part, v_part and the rules.
/// `keys_of`: an axis over a part's keys; `is_there`: of keys, undefined if all are.
void declare_parts(const AttentionShape& shape, AttentionInParts& parts, const Shape& of_keys, const PlaceInPart& at,
                   const std::function<Axis(const std::string& name, const Expr& b, const Expr& c)>& keys_of,
                   const std::function<Expr(const Expr& b, const Expr& c, const Expr& j)>& is_there);
/// Declares what the parts come to: top, weight, total, values, o and lse, of m, l and o_part. With `may_be_empty`,
/// also of rows that see no key: o = 0, lse = -infinity.
void declare_merged_parts(const AttentionShape& shape, AttentionInParts& parts, bool may_be_empty = false);

struct DecodeTiles {
    int64_t keys = 64;  ///< of a step
    int stages = 3;     ///< of keys and values
    int64_t parts = 1;  ///< blocks that share the keys of a sequence
};
/// Throws Error if a size is not positive.
void require_decode_tiles(const DecodeTiles& tiles, TW_HERE);
DecodeTiles decode_tiles(const AttentionShape& shape, const Target& target);
/// For sm_90a, of shapes of one row: warpgroup products of up to 64 heads of a group, loads by a warp of its own.
/// Results o and lse. Throws Error unless steps have a multiple of 16 keys up to 256.
Schedule decode_schedule(const AttentionShape& shape, const DecodeTiles& tiles, const Target& target,
                         const AttentionRules& rules = {}, TW_HERE);

/// Of parts declared for the shape and these tiles, by any source of keys.
Schedule decode_schedule(const AttentionInParts& parts, const AttentionShape& shape, const DecodeTiles& tiles,
                         const Target& target, TW_HERE);

/// One row that sees all keys.
bool is_decode(const AttentionShape& shape);

}  // namespace tw::schedules

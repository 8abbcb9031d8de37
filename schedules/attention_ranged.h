// Attention whose tiles of rows go through the keys that tables name and no others: masks that data decide, such as
// documents or prefixes, leave out what they mask (block-sparse masks; Dong et al. 2024, flex attention).
#pragma once
#include <optional>
#include <string>

#include "schedules/attention_varlen.h"

namespace tw::schedules {

/// For each tile of rows side by side the keys from the first that a rule leaves any of them, of any head, to the last:
/// i32 [batch, tiles, 2], the first, a multiple of keys_of_box, and how many from there on.
struct KeyRanges {
    Tensor first, behind, ranges;
};
constexpr int64_t keys_of_box = 16;  ///< whose numbers, of a byte or more, are 16 bytes, at which boxes begin
/// Of a rule that leaves keys out by -infinity, if there is one, and of the shape's causal mask: made from what the
/// rule reads, by each row and key, and by each head if the rule depends on it. Throws Error as declare_attention.
KeyRanges declare_key_ranges(const AttentionShape& shape, const ScoreRule& rule, int64_t of_tile, TW_HERE);
Schedule key_ranges_schedule(const KeyRanges& ranges, const Target& target, TW_HERE);

/// The attention of declare_attention, but that rows see no keys outside of their tile's range: `ranges` is an input.
/// s, p and w are of keys counted from the first of the tile, of which k_tile and v_tile are views.
struct RangedAttention {
    Attention of;
    Tensor ranges, k_tile, v_tile;
    std::vector<Tensor> numbers;  ///< views of what the rule reads for each key
};
/// Tiles as of attention of packed sequences.
VarlenTiles ranged_tiles(const AttentionShape& shape);
/// A rule's masks hold inside of the ranges, whoever made them. Throws Error as declare_attention, or if a size of the
/// tiles is not positive.
RangedAttention declare_ranged_attention(const AttentionShape& shape, const VarlenTiles& tiles,
                                         const AttentionRules& rules, const AttentionOperands& operands = {}, TW_HERE);
/// For sm_90a: as varlen_schedule.
Schedule ranged_schedule(const RangedAttention& attention, const AttentionShape& shape, const VarlenTiles& tiles,
                         const Target& target, TW_HERE);

struct NamedRanged {
    NamedAttention attention;
    bool of_tables;  ///< the ranges are asked for, not what is made by them
};
/// Reads "attention_ranged_bf16_BATCHxHEADSxROWSxDEPTH", and so on, and "attention_key_ranges_bf16_..", as
/// parse_attention reads what stands behind, but without tiles. Nothing if it is no such name.
std::optional<NamedRanged> parse_ranged(const std::string& name);

}  // namespace tw::schedules

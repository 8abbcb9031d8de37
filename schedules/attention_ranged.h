// Attention whose tiles of rows go through the keys that tables name and no others: masks that data decide, such as
// documents or prefixes, leave out what they mask (block-sparse masks; Dong et al. 2024, flex attention).
#pragma once
#include <optional>
#include <string>

#include "schedules/attention_varlen.h"
#include "schedules/tile_ranges.h"

namespace tw::schedules {

/// The attention of declare_attention, of which tiles of rows go through their ranges alone: `ranges` is an input, and
/// names at least the keys that the rule, and the shape's mask, leave any row of a tile. s, p and w are of keys counted
/// from the first of the tile, of which k_tile and v_tile are views.
struct RangedAttention {
    Attention of;
    Tensor ranges, k_tile, v_tile;
    std::vector<Tensor> numbers;  ///< views of what the rule reads for each key
    AttentionRules rules;         ///< as declared
};
/// Tiles as of attention of packed sequences.
VarlenTiles ranged_tiles(const AttentionShape& shape);
/// A rule's masks hold inside of the ranges, whoever made them. Throws Error as declare_attention, or if a size of the
/// tiles is not positive.
RangedAttention declare_ranged_attention(const AttentionShape& shape, const VarlenTiles& tiles,
                                         const AttentionRules& rules, const AttentionOperands& operands = {}, TW_HERE);
/// For sm_90a: as varlen_schedule, which tiles are refused, too.
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

// Tables of what tiles of one side, rows or keys, go through of the other one, and walks through it.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "schedules/attention.h"

namespace tw::schedules {

/// For each tile of elements side by side those of the other side from the first that any of them goes with, of any
/// head, to the last: i32 [batch, tiles, 2], the first and how many from there on.
struct TileRanges {
    Tensor first, behind, ranges;
};
constexpr int64_t keys_of_box = 16;  ///< whose numbers, of a byte or more, are 16 bytes, at which boxes begin
/// Of tiles of rows, those that a rule, if there is one, and the shape's causal mask leave them: `ranges`, whose firsts
/// are multiples of keys_of_box. Made from what the rule reads, by each row and key, and by each head if the rule
/// depends on it. Throws Error as declare_attention, or if tiles have no rows.
TileRanges declare_key_ranges(const AttentionShape& shape, const ScoreRule& rule, int64_t of_tile, TW_HERE);
Schedule key_ranges_schedule(const TileRanges& ranges, const Target& target, TW_HERE);
/// The same table by keys: for tiles of `of_keys` keys the rows, in whole tiles of `of_rows`, whose tiles go through
/// any of them: `ranges_of_keys`, of `ranges` [batch, tiles of rows, 2], whoever made those.
TileRanges declare_ranges_of_keys(const AttentionShape& shape, const Tensor& ranges, int64_t of_rows, int64_t of_keys,
                                  TW_HERE);
/// Schedules the stages that make a table.
void schedule_ranges(Schedule& s, const TileRanges& ranges, TW_HERE);

/// What tiles of one side go through of the other, whose elements there are `all` of: from the tile's first on, a
/// multiple of `multiple`, in whole steps.
struct RangeWalk {
    Tensor ranges;
    int64_t of_tile, step, all, multiple;

    int64_t most() const { return (all + step - 1) / step * step; }
    Expr tile(const Expr& element) const { return element / of_tile; }
    Expr first(const Expr& b, const Expr& tile) const { return cast(i64, ranges(b, tile, 0)) / multiple * multiple; }
    Axis axis(const std::string& name, const Expr& b, const Expr& element) const;
    /// Of tokens, those of each tile: [batch, tiles, most, heads, extent].
    Tensor view(const AttentionShape& shape, const std::string& name, const Tensor& tokens) const;
    /// Of numbers, [batch, heads, elements], those of each tile: [batch, tiles, heads, most].
    Tensor view_of_numbers(const std::string& name, const Tensor& numbers) const;
};
/// Inputs of which a rule reads an element for each of what tiles go through, and views of those of each tile.
using RangeViews = std::vector<std::pair<Tensor, Tensor>>;
/// What a rule makes, reading such views in the place of inputs whose last index is `other`, and whose others are those
/// of batches and heads: of the x-th of the tile of `own`. New ones, whose names end with the suffix, are added.
Expr with_range_views(const Expr& value, const RangeWalk& walk, const ScorePlace& at, const Expr& own,
                      const Expr& other, const Expr& x, const std::string& suffix, RangeViews& views);

}  // namespace tw::schedules

// Results made of a matrix instruction's accumulators, from the registers of a warp to global memory: of a row of 8 x 8
// elements four lanes hold two each, too few for a wide access. They exchange theirs, so that each has a longer part.
#pragma once
#include "codegen/to_threads/op_tile.h"

namespace tw::codegen {

/// How lanes exchange the tile's results before they store them, or nothing where they cannot: they are no pairs of 16
/// or 32-bit elements spread over lanes as accumulators are, those of neighbouring lanes do not lie side by side in
/// global memory, or conditions tell them apart. The loops that one exchange takes over become the tile's innermost
/// ones. Notes name a condition that stands in the way.
std::optional<LineStore> take_lines(OpTile& tile, const TileOp& op, std::vector<std::string>& notes);

/// The results of those loops, computed into registers, exchanged, and stored by one access of each lane.
ThreadStmt store_lines(const OpTile& tile, int step);

}  // namespace tw::codegen

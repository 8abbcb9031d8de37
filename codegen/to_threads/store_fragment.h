// Results made of a matrix instruction's accumulators, from the registers of a warp to shared memory.
#pragma once
#include "codegen/to_threads/op_tile.h"

namespace tw::codegen {

/// How stmatrix stores the tile's results, or nothing where it cannot: they are no pairs of 16-bit elements spread over
/// lanes as accumulators are, the rows of their matrices do not lie side by side in shared memory, or conditions differ
/// between the lanes of a warp. The loops that one instruction takes over become the tile's innermost ones. Notes
/// name a condition that stands in the way.
std::optional<MatrixStore> take_matrices(OpTile& tile, const TileOp& op, std::vector<std::string>& notes);

/// The results of those loops, computed into registers and stored by one instruction.
ThreadStmt store_fragment(const OpTile& tile, int step);

}  // namespace tw::codegen

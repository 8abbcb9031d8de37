// Iterations of pipelined loops.
#pragma once
#include <vector>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// An expression of the loop in another iteration.
Expr in_iteration(const TileLoop& loop, const Expr& expr, const Expr& iteration);
/// Whether the loop has that iteration.
Expr iteration_exists(const TileLoop& loop, const Expr& iteration);
/// Whether the innermost of these nested loops, outermost first, has as many iterations each time that it is reached:
/// one who knows the others' iterations knows how many there have been.
bool equally_long(const TileKernel& kernel, const std::vector<TileLoop>& loops);
/// Whether a copy that another role makes in each round of a persistent kernel brings the same elements in all of them:
/// then it is made in the first one, and they stay.
bool is_resident(const TileKernel& kernel, const TileLoop& around, const TileOp& copy);

}  // namespace tw::codegen

// Operands of matrix instructions, from shared memory to the registers of a warp.
#pragma once
#include "codegen/thread_ir/thread_ir.h"
#include "codegen/tile_ir/placement.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// A Fragment op by ldmatrix; undefined where the elements of a matrix's rows do not lie side by side in shared memory.
ThreadStmt load_fragment(const TileOp& op, const Placement& placement);

}  // namespace tw::codegen

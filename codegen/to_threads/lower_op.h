// From one op of the tile IR to the statements of a thread.
#pragma once
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"
#include "codegen/tile_ir/placement.h"
#include "dsl/target.h"

namespace tw::codegen {

/// The op's loops, guards, loads and stores. Notes say what could not be made wide.
ThreadStmt lower_op(const TileOp& op, const Placement& placement, const Target& target,
                    std::vector<std::string>& notes);

}  // namespace tw::codegen

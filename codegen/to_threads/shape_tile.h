#pragma once
#include <string>
#include <vector>

#include "codegen/to_threads/op_tile.h"
#include "dsl/target.h"

namespace tw::codegen {

/// How one op is executed by a thread. Notes name what keeps its accesses narrow.
OpTile shape_tile(const TileOp& op, const Placement& placement, const Target& target, std::vector<std::string>& notes);

}  // namespace tw::codegen

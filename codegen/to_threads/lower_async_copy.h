#pragma once
#include "codegen/thread_ir/thread_ir.h"
#include "codegen/tile_ir/placement.h"

namespace tw::codegen {

/// A copy that is asynchronous, or the same once it has been waited for. Where the mask is false, zeros are stored if
/// `otherwise` asks for them.
ThreadStmt lower_async_copy(const TileOp& op, const Placement& placement);

}  // namespace tw::codegen

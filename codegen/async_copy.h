// Copies from global to shared memory that run while the threads go on: cp.async.
#pragma once
#include <string>

#include "codegen/placement.h"
#include "codegen/tile_ir.h"

namespace tw::codegen {

/// Why the copy cannot be asynchronous; "" if it can.
std::string why_not_async(const TileOp& copy, const Placement& placement);
/// Bytes that one request of it moves: 4, 8 or 16.
int64_t async_bytes(const TileOp& copy, const Placement& placement);

/// An AsyncCopy or its Landing. Where the mask is false, zeros are stored if `otherwise` asks for them.
ThreadStmt lower_async_copy(const TileOp& op, const Placement& placement);

}  // namespace tw::codegen

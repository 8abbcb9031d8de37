#pragma once
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"
#include "codegen/tile_ir/tile_ir.h"
#include "dsl/target.h"

namespace tw::codegen {

/// The program of one thread, without barriers: explicit loops and ifs, register arrays, operands loaded once before
/// the unrolled loops that use them again, wide accesses where neighbours are proven, stores of matrices where lanes
/// hold them and the target has the instruction.
ThreadKernel make_threads(const TileKernel& kernel, const Target& target, std::vector<std::string>& notes);

}  // namespace tw::codegen

#pragma once
#include "codegen/tile_ir/tile_ir.h"
#include "dsl/cite.h"
#include "dsl/target.h"

namespace tw::codegen {

/// Throws Error where a block needs more threads or shared memory than the target has.
void check_limits(const TileKernel& kernel, const Target& target, const CiteStep& cite);

}  // namespace tw::codegen

// A pipelined loop, and what it leaves to do elsewhere.
#pragma once
#include <vector>

#include "codegen/async/staged_buffers.h"
#include "codegen/tile_ir/tile_ir.h"
#include "dsl/cite.h"

namespace tw::codegen {

/// What a pipelined loop leaves to do elsewhere.
struct Left {
    std::vector<TileOp> counters = {};  ///< set before all else
    std::vector<TileStmt> behind = {};  ///< the loop around it, into whose next iteration its products run on
};

/// The segments of one loop, one behind another; `from_inside`: of each, what loops in it have left to do behind it.
TileStmt run_segments(TileKernel& kernel, const std::vector<TileLoop>& loops,
                      const std::vector<std::vector<TileStmt>>& from_inside, const std::vector<TileLoop>& around,
                      StagedBuffers& staged, Left& left, const CiteStep& cite);

}  // namespace tw::codegen

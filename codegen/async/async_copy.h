// Copies from global to shared memory that run while the threads go on: cp.async.
#pragma once
#include <string>
#include <vector>

#include "codegen/tile_ir/placement.h"
#include "codegen/tile_ir/tile_ir.h"
#include "dsl/cite.h"

namespace tw::codegen {

/// What one request of a copy moves, and the loops around it.
struct AsyncRequest {
    std::string reason;         ///< why the copy cannot be asynchronous; empty if it can
    Access to, from;            ///< its first elements
    int64_t width = 1;          ///< elements
    std::vector<OpLoop> loops;  ///< around it, outermost first
    std::vector<Expr> active;   ///< who makes it: all of these hold
    std::vector<Expr> there;    ///< elements are there to be copied: all of these hold

    /// 4, 8 or 16.
    int64_t bytes() const;
};
AsyncRequest async_request(const TileOp& copy, const Placement& placement);

/// What the schedule asked for, of a copy.
Via via_of(const TileOp& op);

/// How copies into a buffer move in a pipelined loop, and why.
struct FillChoice {
    bool async;
    int64_t bytes = 0;  ///< at once, asynchronously
    std::string reason = {};
};
/// For all segments of a loop alike. Throws Error if the schedule asked for what is not possible.
FillChoice choose_fill(const TileKernel& kernel, const TileOp& copy, int stages, const CiteStep& cite);

/// Copies that shall be asynchronous where nothing overlaps them: started and awaited.
TileStmt awaited_at_once(const TileKernel& kernel, const TileOp& op, const CiteStep& cite);

}  // namespace tw::codegen

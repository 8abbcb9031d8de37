#pragma once
#include <vector>

#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {

/// An access with what stands around it. Lets are expanded: indices, conditions and extents are over the thread, the
/// block, sizes, the loops' variables and their tickets.
struct PlacedAccess {
    MemoryAccess access;
    std::vector<ThreadLoop> loops;  // outermost first
    std::vector<Expr> conditions;
    std::vector<Expr> tickets;  // of each loop: what names its ticket, as one more variable; undefined if it has none
};

/// How far apart two executions lie: in the same iteration of all common loops, or in iterations of one of them that
/// are one or several apart, the loops outside of it in the same iteration.
enum class Distance { SameIteration, NextIteration, LaterIteration };

enum class Conflict {
    Never,
    Possible,  ///< nothing is known
    Certain,   ///< two threads that do are known
};

}  // namespace tw::codegen

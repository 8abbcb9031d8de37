// What each loop of a schedule moves and computes.
#pragma once
#include <string>
#include <vector>

#include "dsl/tree.h"

namespace tw {

/// What one run of a kernel or a loop costs: bytes read and written in global and in shared memory, and arithmetic on
/// floats (a fused multiply-add counts 2). Masked iterations and both sides of a select count; so named sizes do, at
/// their largest. What is filled into shared memory counts once for the threads that share it.
struct Cost {
    double global_bytes = 0, shared_bytes = 0, flops = 0;
};

/// One complete run of a loop; of a whole kernel at depth 0.
struct LoopCost {
    std::string name;   ///< the kernel's or the loop's
    std::string level;  ///< "thread", "grid.x", ...; empty for a serial loop and for a kernel
    int depth = 0;
    double iterations = 1;
    Cost cost;
};

/// Every kernel followed by its loops, in the order of the nest.
std::vector<LoopCost> nest_costs(const Tree& tree);

}  // namespace tw

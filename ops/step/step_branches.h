// Which kernels of a step may run beside each other.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/step/step_hazards.h"

namespace tw {

/// What is to be known of a group of a step to have it run beside others.
struct StepBranchGroup {
    std::vector<StepAccess> accesses;  ///< of the memory that it really has
    int64_t most_blocks = 0;           ///< of a kernel of it
};

/// For each group those that must have ended before it begins; whoever waits for one waits for what that waited for, so
/// these are the fewest. Groups of which each has at least as many blocks as the device has multiprocessors stand in a
/// chain, in the order given. One with fewer leaves a part of the device idle, and has a branch of its own, beside what
/// stands in front of it or behind it in the chain, as far as it does not conflict with that: it waits for those that
/// it conflicts with, and only they for it.
std::vector<std::vector<size_t>> branches_of(const std::vector<StepBranchGroup>& groups, int64_t multiprocessors);

}  // namespace tw

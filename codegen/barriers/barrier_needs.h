// Inside of insert_barriers: where barriers may stand, and which pairs of accesses need one in between.
#pragma once
#include <utility>
#include <vector>

#include "codegen/barriers/conflict.h"

namespace tw::codegen {

/// A loop or a condition, by the statements inside of it: orders in [first, last).
struct Region {
    ThreadStmt stmt;
    bool divergent = false;  // not all threads execute it together
    bool may_skip = false;   // a condition, or a loop that may have no iteration
    int first = 0, last = 0;
    bool contains(int order) const { return order >= first && order < last; }
};

/// A place for a barrier: where all threads come together.
struct Gap {
    int order;
    double weight;             // how often it is executed
    std::vector<int> regions;  // outermost first
};

struct OrderedAccess {
    PlacedAccess placed;
    int order;
    std::vector<int> regions;
};

/// Gaps and statements are numbered together, in program order, in the way that this says: before each statement that
/// is not led in by the one before it, and at the end of each body, there is a gap.
struct Survey {
    std::vector<Gap> gaps;
    std::vector<Region> regions;
    std::vector<OrderedAccess> accesses;  // of memory that threads share and that the kernel writes
};
Survey survey(const ThreadKernel& kernel);

/// A barrier after one of these would part what belongs together: a comment and what it is about.
bool leads_in(const ThreadStmt& stmt);

struct BarrierNeeds {
    /// For each pair of accesses that may meet, the gaps (by index) that are certain to be passed between the two.
    std::vector<std::vector<int>> sets;
    /// The pairs between which no gap lies.
    std::vector<std::pair<const OrderedAccess*, const OrderedAccess*>> unmet;
};
BarrierNeeds barrier_needs(const ThreadKernel& kernel, const Survey& survey);

}  // namespace tw::codegen

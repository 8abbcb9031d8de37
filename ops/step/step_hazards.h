// What groups of a step do to memory, and which have to wait for which.
#pragma once
#include <cstdint>
#include <set>
#include <vector>

#include "ops/step/step_plan.h"

namespace tw {

/// Bytes that a group touches: of the arena, of a value, or of the memory that the value replaces.
struct StepAccess {
    int memory;  ///< the value's index; -1: the arena
    int64_t begin, end;
    bool writes;
};
std::vector<StepAccess> accesses_of(const StepPlan& plan, const StepGroup& group);
/// Whether both touch a byte, and one of them writes it.
bool conflict(const std::vector<StepAccess>& one, const std::vector<StepAccess>& other);

/// For each group, those that it waits for, directly or through others.
std::vector<std::set<int>> waits_of(const StepPlan& plan);

/// Fills `after` of all groups: those before that they conflict with, without those that one of them waits for.
void order_by_hazards(StepPlan& plan);

}  // namespace tw

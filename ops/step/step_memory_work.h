// Groups of a step that move or set bytes, and compute nothing: nodes of the graph that need no kernel.
#pragma once
#include <optional>

#include "ops/step/step_plan.h"

namespace tw {

/// What the group does, if its one result is an input that it reads, whole and in order, or the same constant
/// everywhere, of at most 4 bytes or of repeated ones, and lies densely in memory. Nothing of all other groups.
std::optional<StepMemoryWork> memory_work_of(const StepGroup& group);

}  // namespace tw

// Which values and workspaces lie in a plan's arena while each group runs.
//
//   fmt::print("{}", memory_map(plan));
//   write_memory_picture("step.svg", plan);
#pragma once
#include <string>
#include <vector>

#include "ops/step/step_plan.h"

namespace tw {

/// Bytes of the arena, taken from one group to another one, both included.
struct ArenaUse {
    std::string name;
    std::vector<std::string> operations;  ///< of the group that makes it, or whose workspace it is
    int64_t offset = 0, bytes = 0;
    int first = 0, last = 0;
    bool is_workspace = false;
};

/// By offset at the same first group, in the order of groups. Counters, which have memory of their own, are none.
std::vector<ArenaUse> arena_uses(const StepPlan& plan);
/// Of each group, its operations, the bytes in use, and what uses them, with offsets, and operations that made it.
std::string memory_map(const StepPlan& plan);
/// As an SVG: groups to the right, bytes of the arena upwards, a rectangle with a title for each use.
std::string memory_picture(const StepPlan& plan);
/// Throws Error if the file cannot be written.
void write_memory_picture(const std::string& path, const StepPlan& plan, TW_HERE);

}  // namespace tw

// Groups and values of a plan by their numbers, and who reads and overwrites what.
#pragma once
#include <map>
#include <vector>

#include "ops/step/step_plan.h"

namespace tw {

inline StepGroup& group_at(StepPlan& plan, int group) { return plan.groups[static_cast<size_t>(group)]; }
inline const StepGroup& group_at(const StepPlan& plan, int group) { return plan.groups[static_cast<size_t>(group)]; }
inline StepValue& value_at(StepPlan& plan, int value) { return plan.values[static_cast<size_t>(value)]; }
inline const StepValue& value_at(const StepPlan& plan, int value) { return plan.values[static_cast<size_t>(value)]; }
inline int num_groups(const StepPlan& plan) { return static_cast<int>(plan.groups.size()); }
inline bool is_between(const StepValue& value) { return value.place == StepValue::Place::Arena; }

constexpr int64_t arena_alignment = 256;  // bytes; of place_in_arena()
inline int64_t in_arena(int64_t bytes) { return (bytes + arena_alignment - 1) / arena_alignment * arena_alignment; }

/// For each value, the groups that read it, in their order.
std::vector<std::vector<int>> readers_of(const StepPlan& plan);
/// By input, and by part of one: the group that writes its memory.
std::map<int, int> overwriters_of(const StepPlan& plan);
/// Whether it writes the memory of an input.
bool overwrites_input(const StepPlan& plan, const StepGroup& group);

/// Puts groups in this order: group order[k] becomes group k.
void reorder(StepPlan& plan, const std::vector<int>& order);

/// A place in the arena for all that is needed between groups, and for what a group's kernels need.
void place_values(StepPlan& plan);

}  // namespace tw

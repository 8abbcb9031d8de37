// Which operations of a step are scheduled together.
#pragma once
#include <string>
#include <vector>

#include "ops/step/group_schedules.h"

namespace tw {

struct StepCut {
    std::vector<std::vector<int>> groups;  ///< nodes in the graph's order; groups in an order in which they can run
    std::vector<std::string> joined;       ///< neighbours that were joined, and what that saves as predicted
    std::vector<std::string> apart;        ///< neighbours that were not joined, and why
};

/// Groups grow from single operations: of two neighbours, one that reads what the other makes or both readers of one
/// tensor, those become one whose kernels together take less time than theirs apart, by the model of time, if nothing
/// that is not in them has to run between. Throws Error if an operation alone cannot be scheduled.
StepCut cut_step(const StepGraph& graph, GroupSchedules& schedules);
/// Each operation a group by itself. Throws Error likewise.
StepCut separate_step(const StepGraph& graph, GroupSchedules& schedules);

}  // namespace tw

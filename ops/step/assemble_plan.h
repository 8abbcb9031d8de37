// From groups of operations to a plan.
#pragma once
#include <map>

#include "ops/step/cut_step.h"
#include "ops/step/step_plan.h"

namespace tw {

struct AssembledPlan {
    StepPlan plan;                      ///< groups in the cut's order; without places, and nobody waits
    std::map<TensorKey, int> value_of;  ///< by tensors of the graph
};

/// Values and groups of the cut, each group with its schedule.
AssembledPlan assemble_plan(const StepGraph& graph, const StepCut& cut, GroupSchedules& schedules);

}  // namespace tw

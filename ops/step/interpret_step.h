// A planned step on the CPU, group by group over the plan's own memory: what proves a cut and an arena without kernels.
#pragma once
#include <vector>

#include "dsl/interpret.h"
#include "ops/step/step_plan.h"

namespace tw {

/// The results, as interpret_plain() gives them of what was planned. The arena starts as NaN. `order`: all groups, each
/// behind those that it waits for; the plan's own if it is empty. Throws Error as interpret_plain does.
std::vector<HostArray> interpret_step(const StepPlan& plan, const Bindings& bindings,
                                      const std::vector<int>& order = {});

}  // namespace tw

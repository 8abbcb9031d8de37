// In which order dimensions of what lies between operations are in memory: as those want it who read and write it.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/step/cut_step.h"
#include "ops/step/in_orders.h"

namespace tw {

/// A step with its graph, and which of its operations are scheduled together.
struct CutStep {
    StoredStep step;
    StepGraph graph;
    StepCut cut;
};
/// What lay_out() plans by.
struct StepCutting {
    std::function<StepGraph(const StoredStep& step)> graph_of;
    std::function<StepCut(const StepGraph& graph)> cut;
    GroupSchedules& schedules;
};

/// What is as the step is declared, or in another order where that is faster.
struct LaidOutStep {
    CutStep step;
    std::vector<std::string> laid_out;  ///< what is in another order, and what that saves, a line each
};

/// What sums of products make, read and write may lie so that they need no copies of it (schedules/channels_last.h:
/// channels last, of a convolution that is declared channels first). Tensors that are neither inputs nor results, nor
/// operands or results of a part, are taken with those that are made of them element by element, all in the same order.
/// First all are laid as they are wanted; then each is taken back without which operations by themselves are faster;
/// what remains is kept if, cut into groups, the kernels that touch it take clearly less time, by the model. Equal ones
/// are decided once. No bit of a result is another one but where kernels sum in another order. Nothing, in little
/// time, where nothing is wanted otherwise than it lies.
std::optional<LaidOutStep> lay_out(const StoredStep& step, const StepGraph& graph, const StepCutting& cutting);

}  // namespace tw

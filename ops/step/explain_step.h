// What each kernel of a planned step costs, as predicted and as measured.
//
//   fmt::print("{}", explain(plan));                        // predicted
//   fmt::print("{}", explain(planned, {.sorted = true}));   // measured, the longest first
#pragma once
#include <string>
#include <vector>

#include "ops/step/planned_step.h"

namespace tw {

struct KernelCost {
    size_t group = 0;  ///< of the plan
    std::string name;
    double bytes = 0;           ///< that pass device memory, as counted by the model
    double seconds = 0;         ///< as predicted
    double memory_seconds = 0;  ///< the least that its bytes take
    std::string bound = {};     ///< what takes longest, as predicted: "memory", "instructions", ..
    double measured = 0;        ///< seconds; 0: not measured
};

struct ExplainOptions {
    bool sorted = false;  ///< the kernels that take longest first, else in launch order
    int runs = 5;         ///< of the step, of which the median is taken
};

/// Of all kernels, in launch order.
std::vector<KernelCost> kernel_costs(const StepPlan& plan);
/// The same, measured: runs the whole step launch by launch, an event between any two, so that each kernel reads what
/// it reads in a step; then puts back what results and overwritten inputs held. Times include what the device idles
/// between two launches. Throws Error if `runs` is less than 1.
std::vector<KernelCost> measured_costs(const PlannedStep& step, int runs = 5, TW_HERE);

/// How many operations groups have, their FLOPs, a row for each kernel, and the sum.
std::string explain(const StepPlan& plan, const ExplainOptions& options = {});
/// The same with what measured_costs() finds; on an emulated device these are marked as such, and are no speeds.
std::string explain(const PlannedStep& step, const ExplainOptions& options = {}, TW_HERE);

}  // namespace tw

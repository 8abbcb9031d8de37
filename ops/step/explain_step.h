// What each kernel of a planned step costs, as predicted and as measured, and how near that is to what the device can.
//
//   fmt::print("{}", explain(plan));                       // predicted
//   fmt::print("{}", planned.explain({.sorted = true}));   // measured, the longest first
#pragma once
#include <string>
#include <vector>

#include "ops/step/explain_options.h"
#include "ops/step/operation_kinds.h"
#include "ops/step/planned_step.h"

namespace tw {

struct KernelCost {
    size_t group = 0;  ///< of the plan
    std::string name;
    std::vector<std::string> operations = {};  ///< of the group, as the user called them
    std::vector<std::string> scopes = {};      ///< of each, "blocks.0.up"
    std::string why = {};                      ///< its schedule is this one
    double bytes = 0;                          ///< that pass device memory, as counted by the model
    /// Its part of those of the group's declaration (declared_flops()), as its loops have parts of the kernels' FLOPs.
    double flops = 0;
    double seconds = 0;  ///< as predicted
    /// The least that its bytes and its FLOPs take, by the table of speeds (codegen/cost/device_speeds.h): all memory
    /// has; all tensor cores multiply, of the type that its matrix instructions read, or all lanes, where it has none.
    double memory_seconds = 0, compute_seconds = 0;
    std::string bound = {};  ///< what takes longest, as predicted: "memory", "instructions", ..
    double measured = 0;     ///< seconds; 0: not measured
};

/// What operations of one kind cost. A group's time counts for the first kind that it has, in the order of
/// OperationKind.
struct KindCost {
    OperationKind kind;
    int operations = 0;
    int groups = 0;      ///< that count for it
    double seconds = 0;  ///< of these, as predicted
    double measured = 0;
};

/// Of all kernels, in launch order.
std::vector<KernelCost> kernel_costs(const StepPlan& plan);
/// The same, measured: runs the whole step launch by launch, an event between any two, so that each kernel reads what
/// it reads in a step; then puts back what results and overwritten inputs held, also where a launch throws. Times
/// include what the device idles between two launches. Throws Error if `runs` is less than 1.
std::vector<KernelCost> measured_costs(const PlannedStep& step, int runs = 5, TW_HERE);
/// Seconds of the whole step as it runs, one launch, by the median; less the kernels' times, it is what lies between
/// them. Puts back the same. Throws Error if `runs` is less than 1.
double measured_replay(const PlannedStep& step, int runs = 5, TW_HERE);

/// Of the kinds that the plan has, in the order of OperationKind; `costs` are of its kernels.
std::vector<KindCost> costs_by_kind(const StepPlan& plan, const std::vector<KernelCost>& costs);

/// How many operations groups have, FLOPs, what kinds of operations cost, for each kernel its row and what it is of,
/// and the sum.
std::string explain(const StepPlan& plan, const ExplainOptions& options = {});
/// The same with what measured_costs() and measured_replay() find; on an emulated device these are marked as such, and
/// are no speeds.
std::string explain(const PlannedStep& step, const ExplainOptions& options = {}, TW_HERE);

}  // namespace tw

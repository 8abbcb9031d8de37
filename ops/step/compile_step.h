// A step of training as a user writes it, layers, backward() and optimizer, compiled as one graph.
//
//   nn::CompiledStep step = nn::compile(backend, [&] {
//       nn::Tensor loss = nn::cross_entropy(output(nn::relu(hidden(x))), labels);
//       nn::backward(loss);
//       sgd.step();
//       return std::vector{loss};
//   });
//   step.run();                                  // forward, backward and update: one launch
//   double now = step.results()[0].to_host().at({}).real;
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ops/autograd.h"
#include "ops/step/planned_step.h"

namespace tw::nn {

class CompiledStep {
public:
    /// All launches, without waiting. Tensors from outside that the step reads are read where they lie: what was copied
    /// to them since counts. Throws Error while a step is recorded or captured, of which it would be no part.
    void run(TW_HERE) const;
    /// What the function returned; they hold what the last run made. Before the first one they refuse to be read.
    const std::vector<Tensor>& results() const { return results_; }
    /// Throws Error if nothing has been compiled.
    const PlannedStep& planned() const;
    const StepPlan& plan() const { return planned().plan(); }
    /// What each kernel costs, as predicted and as measured (explain_step.h).
    std::string explain(const ExplainOptions& options = {}, TW_HERE) const { return planned().explain(options, where); }

private:
    friend CompiledStep compile(const std::shared_ptr<Backend>& backend,
                                const std::function<std::vector<Tensor>()>& step, const StepOptions& options,
                                std::source_location where);
    std::shared_ptr<Backend> backend_;
    std::shared_ptr<const PlannedStep> step_;
    std::vector<Tensor> results_;  // none of a step that only updates
};

/// The step that `step` is captured as by compile(), planned for `target`, which need not be the backend's: nothing is
/// compiled or loaded, so that what becomes of it on another device can be looked at. Throws what compile() throws
/// before it loads.
StepPlan plan(const std::shared_ptr<Backend>& backend, const std::function<std::vector<Tensor>()>& step,
              const StepOptions& options, const Target& target, TW_HERE);

/// Calls `step` once, which computes nothing: its calls of operators, backward() and updates become one graph of
/// declarations, which is planned (step_plan.h) and loaded on the backend's device. Results are tensors that the step
/// makes. Tensors from outside are its inputs; parameters, velocities and running moments keep what each run makes of
/// them. Schedules come from the backend's registry, for groups of operations, not for each operator: functions that an
/// operator brought are not asked. Throws what the function throws, Error if it reads a tensor, runs kernels by itself
/// or returns what it does not make, and what plan_step() and PlannedStep throw.
CompiledStep compile(const std::shared_ptr<Backend>& backend, const std::function<std::vector<Tensor>()>& step,
                     const StepOptions& options = {}, TW_HERE);

}  // namespace tw::nn

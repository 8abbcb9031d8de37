#include "ops/step/compile_step.h"

#include "ops/capture.h"
#include "support/error.h"

namespace tw::nn {

CompiledStep compile(const std::shared_ptr<Backend>& backend, const std::function<std::vector<Tensor>()>& step,
                     const StepOptions& options, std::source_location where) {
    Capture capture;
    CompiledStep compiled;
    backend->write_down(capture, [&] { compiled.results_ = step(); });
    for (const Tensor& result : compiled.results_)
        user_check(result.defined() && result.symbol().defined(), where,
                   "compile: the function returns '{}', which the step does not make; return what it computes",
                   result.defined() ? result.name() : "an undefined tensor");
    const schedules::Declared declared = capture.declared(compiled.results_);
    StepOptions planned = options;
    for (const MadeBetween& region : capture.regions()) planned.recompute.regions.push_back(region);
    StepPlan plan = plan_step(declared, backend->target(), backend->registry(), planned, where);
    compiled.step_ = std::make_shared<PlannedStep>(std::move(plan), backend->device(), capture.given(), where);
    for (size_t k = 0; k < compiled.results_.size(); ++k)
        compiled.results_[k].set_data(compiled.step_->buffer(declared.outputs[k].name()));
    return compiled;
}

}  // namespace tw::nn

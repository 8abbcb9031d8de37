#include "ops/step/compile_step.h"

#include "ops/capture.h"
#include "support/error.h"

namespace tw::nn {

namespace {

/// What a step's function does, written down.
struct CapturedStep {
    Capture capture;
    std::vector<Tensor> results;
    schedules::Declared declared;

    CapturedStep(Backend& backend, const std::function<std::vector<Tensor>()>& step, std::source_location where) {
        backend.write_down(capture, [&] { results = step(); });
        for (const Tensor& result : results)
            user_check(result.defined() && result.symbol().defined(), where,
                       "compile: the function returns '{}', which the step does not make; return what it computes, and "
                       "read what it updates, as a parameter, itself behind run()",
                       result.defined() ? result.name() : "an undefined tensor");
        declared = capture.declared(results);
        user_check(!declared.outputs.empty(), where,
                   "compile: the function returns nothing, and updates nothing; return what it computes");
    }

    StepPlan planned(Backend& backend, StepOptions options, const Target& target, std::source_location where) const {
        for (const MadeBetween& region : capture.regions()) options.recompute.regions.push_back(region);
        options.parts = capture.parts();
        return plan_step(declared, target, backend.registry(), options, where);
    }
};

}  // namespace

StepPlan plan(const std::shared_ptr<Backend>& backend, const std::function<std::vector<Tensor>()>& step,
              const StepOptions& options, const Target& target, std::source_location where) {
    return CapturedStep(*backend, step, where).planned(*backend, options, target, where);
}

const PlannedStep& CompiledStep::planned() const {
    if (!step_)
        throw_error(Error, "compiled step: nothing has been compiled into it; assign it what nn::compile() returns");
    return *step_;
}

void CompiledStep::run(std::source_location where) const {
    const PlannedStep& step = planned();
    backend_->refuse_in_step("a compiled step is run", "call its function, or run it outside", where);
    step.run(where);
}

CompiledStep compile(const std::shared_ptr<Backend>& backend, const std::function<std::vector<Tensor>()>& step,
                     const StepOptions& options, std::source_location where) {
    CapturedStep captured(*backend, step, where);
    StepPlan plan = captured.planned(*backend, options, backend->target(), where);
    CompiledStep compiled;
    compiled.backend_ = backend;
    compiled.results_ = std::move(captured.results);
    compiled.step_ = std::make_shared<PlannedStep>(std::move(plan), backend->device(), captured.capture.given(), where);
    for (size_t k = 0; k < compiled.results_.size(); ++k)
        compiled.results_[k].set_data(compiled.step_->buffer(captured.declared.outputs[k].name()),
                                      compiled.step_->has_run());
    return compiled;
}

}  // namespace tw::nn

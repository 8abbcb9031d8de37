// A step of training with its data on a device, ready to be run in bursts.
#pragma once
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "bench/train_steps.h"

namespace tw::bench {

class StepCase {
public:
    /// Plans, compiles and fills, writes what the step reads to the folder, runs once and writes what it has made: for
    /// each tensor NAME `before_NAME`, if it has data before the first run, and `after_NAME`. An empty folder: nowhere.
    StepCase(const TrainStepRequest& request, std::shared_ptr<Device> device, const std::string& folder);

    /// "sizes"; tensors with their files ("before", "after"), "launches", how many of them run "beside" the one in
    /// front, "distinct" groups, "predicted_ms", "arena" in bytes, and what planning and loading took, "seconds".
    const nlohmann::json& facts() const { return facts_; }
    /// Groups, kernels and memory (StepPlan::text()).
    std::string text() const { return made_.step.plan().text(false); }

    /// Of each kernel in launch order: its name, and microseconds of it alone, run many times in a row, so that what it
    /// reads may be in L2 where it is not in a step.
    nlohmann::json profile();
    /// Seconds of one of so many steps in a row, by the device's timer.
    double burst(int64_t runs);

private:
    std::shared_ptr<Device> device_;
    TrainStep made_;
    nlohmann::json facts_;
    bool is_warm_ = false;
};

}  // namespace tw::bench

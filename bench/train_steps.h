// Steps of training as a user writes them, which compare.py times beside PyTorch's.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/step/compile_step.h"

namespace tw::bench {

struct TrainStepRequest {
    std::string step;  ///< its name in train_steps()
    std::map<std::string, int64_t> sizes = {};
    uint64_t seed = 1;
    Type values = f32;     ///< of values and adjoints: MixedPrecision
    bool branches = true;  ///< StepOptions::branches
};

struct TrainStep {
    nn::CompiledStep step;
    /// Data, parameters and what the step returns, by the names that PyTorch's side uses. Parameters hold what the last
    /// run made of them.
    std::vector<std::pair<std::string, nn::Tensor>> tensors;
    std::map<std::string, int64_t> sizes;
};

/// Names of the steps, with the sizes of each and what they are where nothing is said.
const std::map<std::string, std::map<std::string, int64_t>>& train_steps();

/// Data and parameters are random. Throws Error where no step has the name, or it has no such size.
TrainStep make_train_step(const TrainStepRequest& request, const std::shared_ptr<Device>& device);

/// The same step as it is planned for a target, by a device that needs memory for all tensors, but runs nothing. Throws
/// as make_train_step().
StepPlan plan_train_step(const TrainStepRequest& request, const std::shared_ptr<Device>& device, const Target& target);

}  // namespace tw::bench

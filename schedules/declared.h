// What is to be computed, and where it may lie.
#pragma once
#include <utility>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Outputs, and those of them that overwrite an input: (out, in).
struct Declared {
    std::vector<Tensor> outputs;
    std::vector<std::pair<Tensor, Tensor>> in_place = {};
};

}  // namespace tw::schedules

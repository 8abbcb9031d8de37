// What tells elements how many terms they have.
#pragma once
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Computed tensors that extents of reductions read: loops do not compute those.
std::vector<Tensor> deciding_lengths(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules

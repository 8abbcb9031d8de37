// Operations that one schedule can hold.
#pragma once
#include <vector>

#include "dsl/tensor.h"

namespace tw::nn {

/// The same tensors, of operations of which no two have one name: a rule of with_gradient() that is followed twice, as
/// in gradients of gradients, has declared all of its own twice. Inputs and the outputs themselves keep their names;
/// where no two are equal, these are the outputs given.
std::vector<tw::Tensor> with_distinct_operations(const std::vector<tw::Tensor>& outputs);

}  // namespace tw::nn

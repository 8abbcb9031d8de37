// What rules of with_gradient leave out must not count as zero without a word. Inside of dsl/ only.
#pragma once
#include <source_location>
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// Refuses gradients of `inputs` if an adjoint of the output reaches a tensor with a gradient of the user's own that
/// reads one of them, itself or through tensors that it is computed from, and does not list it. Indices, conditions and
/// what is rounded to integers pass no adjoint; tensors that are taken as constants, stop_gradient, neither.
void check_gradient_rules(const Tensor& output, const std::vector<Tensor>& inputs, std::source_location where);

}  // namespace tw

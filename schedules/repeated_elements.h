// Elements that would be computed many times over if each reader computed them itself.
#pragma once
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Tensors that reduce nothing and are better stored by a kernel of their own than inlined: elements elsewhere are made
/// of several of theirs, as those of a stencil, and of so many others through them that reading these again costs more
/// than memory does. Four steps of five points, inlined, read 625 elements for each; of those stored, five.
std::vector<Tensor> repeated_elements(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules

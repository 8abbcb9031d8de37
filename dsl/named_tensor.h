// Tensors of a schedule that its author has no variables of.
#pragma once
#include <source_location>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// The tensor of that name among the outputs, all that they are computed from, and inputs; of a tuple its first. So are
/// those found that a rule has declared anew, of the schedule's outputs(). Throws Error, with the names that there are,
/// if none is called so.
Tensor named_tensor(const std::vector<Tensor>& outputs, const std::string& name,
                    std::source_location where = std::source_location::current());

}  // namespace tw

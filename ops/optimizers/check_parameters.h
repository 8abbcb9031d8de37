// What can be updated.
#pragma once
#include <source_location>
#include <string>
#include <vector>

#include "ops/tensor.h"

namespace tw::nn {

/// Throws Error, of the one who asks, without parameters, and if one is undefined, given twice, a scalar, no f32 or of
/// another backend than the first.
void check_parameters(const std::string& who, const std::vector<Tensor>& parameters, std::source_location where);

}  // namespace tw::nn

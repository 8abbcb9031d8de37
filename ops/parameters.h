// What layers learn: tensors that require gradients, and how they start.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/tensor.h"

namespace tw::nn {

/// f32, uniform in +-bound: the same seed, the same values anywhere.
Tensor uniform_parameter(std::shared_ptr<Backend> backend, const std::vector<int64_t>& shape, double bound,
                         uint64_t seed, const std::string& name);
/// f32, `value` everywhere.
Tensor constant_parameter(std::shared_ptr<Backend> backend, const std::vector<int64_t>& shape, double value,
                          const std::string& name);
/// The same, which requires no gradient.
Tensor constant_tensor(std::shared_ptr<Backend> backend, const std::vector<int64_t>& shape, double value,
                       const std::string& name);
/// All of them, one list behind the other.
std::vector<Tensor> joined(const std::vector<std::vector<Tensor>>& parameters);

}  // namespace tw::nn

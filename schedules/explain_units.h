// Why a sum of products is not on tensor cores, or has no windows in registers.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "dsl/target.h"
#include "dsl/tensor.h"

namespace tw::schedules {

/// What keeps choose_schedule from multiplying the factors of the tensor's sum on tensor cores, and what to do about
/// it, for explain(); `refusal`: what a step or a pass said of the last tiling that was tried, if there was one.
/// Nothing of a tensor that is no sum of products of matrices or over windows: whose factors do not each have an axis
/// of the result to themselves.
std::optional<std::string> why_without_units(const Tensor& c, const std::vector<Tensor>& outputs, const Target& target,
                                             const std::string& refusal);
/// What keeps choose_schedule from summing the windows of each channel in registers (find_depthwise), and what to do
/// about it. Nothing of a tensor that is no sum of products over windows whose factors are both read along channels.
std::optional<std::string> why_one_by_one(const Tensor& c, const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules

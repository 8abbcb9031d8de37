// What a schedule's roundings make of its declaration.
#pragma once
#include <utility>
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// The output as it is declared, but that these tensors, which it reads directly or through others, are rounded to
/// these types where they are made. Those that it does not read are left out.
Tensor with_roundings(const Tensor& output, const std::vector<std::pair<Tensor, Type>>& rounded);

}  // namespace tw

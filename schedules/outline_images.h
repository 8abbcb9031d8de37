// Images that a sum over windows makes element by element where it reads them, as tensors of their own.
#pragma once
#include <vector>

#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of sums of products whose factor is an element of a 16-bit tensor as a function makes it anew, of it alone and of
/// what belongs to its channel, rounded to 16 bits, with zeros around:
///
///     sum(select(is_inside, cast(f32, cast(bf16, relu(cast(f32, x(n, h, w, c)) * scale(c)))), 0) * cast(f32, w(..)),
///     ..)
///
/// reads a tensor of such elements then, where window_product() takes that. And of sums that read a tensor of f32 which
/// is elements of 16 bits or zeros, select(0 < y(..), cast(f32, dy(..)), 0) of a ReLU's adjoint: that tensor is read
/// from one of 16 bits.
Redeclared outline_images(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules

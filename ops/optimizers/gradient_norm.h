// The length of all gradients together.
#pragma once
#include <vector>

#include "ops/tensor.h"

namespace tw::nn {

/// The square root of the sum of the squares of all elements of all tensors, f32, a scalar in device memory. A sum for
/// all small tensors, 64 a kernel, one for each other tensor, and one for each 32 of their sums. Off the tape.
Tensor global_norm(const std::vector<Tensor>& gradients);
/// Of gradients of a loss that was multiplied by the scale, an f32 scalar: the norm divided by that.
Tensor global_norm(const std::vector<Tensor>& gradients, const Tensor& scale);

/// What to multiply gradients with so that their norm is max_norm at most: max_norm / (norm + 1e-6) where that is below
/// 1, else 1; NaN of a norm that is NaN (Pascanu et al., On the difficulty of training recurrent neural networks, 2013,
/// with the term of torch.nn.utils.clip_grad_norm_).
Expr clipping_factor(const Expr& norm, double max_norm);

}  // namespace tw::nn

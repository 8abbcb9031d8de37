// Elements that are made of a product's, or a sum's of columns, alone, in its place.
#pragma once
#include <vector>

#include "dsl/target.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of a product of two matrices, or a batch of them, or a sum of columns, which is no output and which one tensor alone
/// reads, itself or through elements that nobody else reads, that reduces nothing, has its shape and reads it only
/// where it stands:
///
///     z[i, j] = sum_k x[i, k] * w[j, k]                     h[i, j] = tanh(bias[j] + sum_k x[i, k] * w[j, k])
///     h[i, j] = tanh(bias[j] + z[i, j])
///
/// So an activation, a residual or an update of weights is made where the product leaves its registers, and the product
/// has no memory. What z is rounded to, it is rounded to in h. Convolutions have rules of their own.
Redeclared behind_products(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules

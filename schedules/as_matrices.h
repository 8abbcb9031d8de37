// Sums of products in f32 over windows or several axes, as products of two matrices.
#pragma once
#include <vector>

#include "dsl/target.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of large sums of products of two tensors in f32 that are no product of matrices as they stand, where each axis of
/// the result belongs to one factor alone, as those of a convolution and its gradients do:
///
///     y[n, p, q, k] = sum_{r, s, c} x[n, p + r, q + s, c] * w[k, r, s, c]
///
/// both factors become matrices of what is multiplied, stored in memory (im2col; Chellapilla et al. 2006), and the sum
/// their product, which threads tile well:
///
///     x_rows[m, t] = x[n, p + r, q + s, c] with m = (n, p, q), t = (r, s, c);  y_product[m, k] = sum_t x_rows[m, t] *
///     w_rows[k, t]
///
/// Terms are added in the order of t, as they were declared or with another axis last, in parts. Left as they are:
/// small sums, and those whose matrices take more than 4 GiB.
Redeclared as_matrices(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules

// Sums of products whose factors no unit, or tile of threads, reads as they are, as products of matrices.
#pragma once
#include <vector>

#include "dsl/target.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of large sums of products of two factors that are no product of matrices as they stand, where each axis of the
/// result belongs to one factor alone, or to both, as a batch:
///
///     y[i, j] = sum_k table[ids[i], k] * w[j, k];   y[i, j] = sum_k x[i, k] * (w[j, k] of i8);
///     c[i, j] = sum_k (x[k, i] - mean[i]) * (x[k, j] - mean[j])
///
/// factors that are gathered, of another type, or made in the term become tensors in front. If a type that tensor cores
/// multiply holds all values of both exactly (exact_types.h), they have that type, else they are f32, for threads. Sums
/// in f32 over windows or several axes, as those of a convolution and its gradients,
///
///     y[n, p, q, k] = sum_{r, s, c} x[n, p + r, q + s, c] * w[k, r, s, c]
///
/// have both factors as matrices of what is multiplied, stored in memory (im2col; Chellapilla et al. 2006):
///
///     y_rows[m, t] = x[n, p + r, q + s, c] with m = (n, p, q), t = (r, s, c);  y_product[m, k] = sum_t y_rows[m, t] *
///     y_columns[k, t]
///
/// Terms are added in the order of t, as they were declared or with another axis last, in parts. A condition on the
/// whole term goes with one factor: zero times what is infinite is NaN then. Left as they are: small sums, and those
/// whose matrices take more than 4 GiB; what data choose for rows of a product on tensor cores is copied at any size.
/// Sums over several axes of other types than f32 have rules of their own: only those of the tensors named `windows`,
/// which no such rule takes, are products of matrices here.
Redeclared as_matrices(const std::vector<Tensor>& outputs, const Target& target,
                       const std::vector<std::string>& windows = {});

}  // namespace tw::schedules

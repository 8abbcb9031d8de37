// Sums of products of three factors and more, as sums of products of two.
#pragma once
#include <vector>

#include "schedules/redeclared.h"

namespace tw::schedules {

/// Sums over several axes of factors of which none has all,
///
///     y[i, j] = sum_p,q x[i, p] * w[p, q] * z[q, j]
///
/// are sums of products of two, of which each but the last is a tensor, `NAME_part`, where that needs at most half of
/// the multiplications, or two thirds of them if the first product is one of large matrices:
///
///     y_part[i, q] = sum_p x[i, p] * w[p, q],   y[i, j] = sum_q y_part[i, q] * z[q, j]
///
/// Equal as real numbers: each part is rounded to f32 as sums are.
Redeclared factors_in_pairs(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules

// Sums over several axes that are one for a tensor core: its terms lie in blocks, which data may choose.
#pragma once
#include <vector>

#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of products that tensor cores can make, if all their terms are those of one axis, and that no window could be: what
/// an operand reads is chosen by data, or its rows have a matrix of their own (unit_product.h), or all terms lie one
/// behind the other in both operands:
///
///     y[i, j] = sum_s,t values[i / 64, s, i % 64, t] * x[places[i / 64, s] * 64 + t, j]
///     y[i, j] = sum_q   values[i / 64, q / 64, i % 64, q % 64] * x[places[i / 64, q / 64] * 64 + q % 64, j]
///     y[i, j] = sum_r,s   a[i, r, s] * b[j, r, s]
///
/// The axis along which most lies side by side is the fastest one. The order in which f32 is added may change.
Redeclared joined_terms(const std::vector<Tensor>& outputs);
/// Of one tensor; undefined if its terms have one axis, or are no such.
Tensor with_joined_terms(const Tensor& tensor);

}  // namespace tw::schedules

// Products of the same rows with several matrices, as one product whose columns come in turns.
#pragma once
#include <vector>

#include "dsl/target.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of elements that are made of several products on tensor cores with the same rows, which stand in the expression or
/// in tensors that it alone reads, at its own column, or at several columns of one product:
///
///     h[i, j] = silu(sum_k x[i, k] * g[j, k]) * sum_k x[i, k] * u[j, k]
///
/// as elements of one product, whose matrix is a copy with columns of each by turns, eight at a time, so that tiles
/// hold all that an element needs (register_product):
///
///     h_matrix[j, k] = j / 8 % 2 == 0 ? g[j / 16 * 8 + j % 8, k] : u[j / 16 * 8 + j % 8, k]
///     h_product[i, j] = sum_k x[i, k] * h_matrix[j, k]
///     h[i, j] = silu(h_product[i, j / 8 * 16 + j % 8]) * h_product[i, j / 8 * 16 + j % 8 + 8]
///
/// where the models of time expect the copy to cost less than products of their own. Nothing is rounded otherwise.
Redeclared columns_in_turns(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules

// Copies of what large f32 products read, with rows that threads take to shared memory as they lie.
#pragma once
#include <vector>

#include "dsl/schedule.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of products by threads (matrix_factors.h): operands whose terms lie side by side pass through registers on their way
/// to shared memory, which has rows or columns side by side, and rows that are no whole vectors of four come in pieces.
/// Where the model of the time (product_tiles.h) says that it pays, such operands are copied in front, a term a row, in
/// rows of whole vectors of four:
///
///     b_turned[k, j] = b[j, k];   c[i, j] = sum_k a[i, k] * b[j, k]  becomes  sum_k a_turned[k, i] * b_turned[k, j]
Redeclared copied_operands(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules

// Copies of what tensor cores multiply, in rows that boxes load.
#pragma once
#include <vector>

#include "dsl/target.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// Products of matrices (unit_product.h) that warpgroups do not take, as rows of operands are no whole pieces of 16
/// bytes, or terms of operands that are not 16 bits do not lie side by side. Where the models of their times say that
/// it pays (wants_copied_operands), such operands are copied in front: into longer rows, with zeros behind the terms,
/// or turned, where that is the only copy, or rows along columns are not whole:
///
///     a_padded[i, k] = select(k < 1001, a[i, k], 0)        sum_{k < 1001} a[i, k] * b[j, k]  becomes
///                                                           sum_{k < 1008} a_padded[i, k] * b_padded[j, k]
///     a_turned[k, i] = a[i, k]                              sum_{k < 1001} a[i, k] * b[k, j]  becomes
///                                                           sum_{k < 1001} a_turned[k, i] * b[k, j]
Redeclared whole_rows(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules

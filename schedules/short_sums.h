// Reductions of few terms inside of others, written out.
#pragma once
#include <vector>

#include "schedules/redeclared.h"

namespace tw::schedules {

/// A reduction of at most eight terms whose results are terms of another one, each of a single term,
///
///     nearest[i] = min_j sum_k (a[i, k] - b[j, k])^2     with k < 3
///
/// would be stored for all pairs. Its terms are operands of an expression instead, combined in their order:
///
///     nearest[i] = min_j ((a[i, 0] - b[j, 0])^2 + (a[i, 1] - b[j, 1])^2 + (a[i, 2] - b[j, 2])^2)
///
/// The same of a tensor that is such a reduction and that nothing else reads.
Redeclared short_sums(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules

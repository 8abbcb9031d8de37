// Reductions along the rows of a product, of which each tile makes a part while it is in registers.
#pragma once
#include <optional>
#include <vector>

#include "schedules/composed_parts.h"
#include "schedules/row_reads.h"

namespace tw::schedules {

/// Of a product of two matrices on tensor cores that is no output, z[i, j], where all that reads it, itself or through
/// elements that are inlined, reduces rows of it whole:
///
///     m[i] = max_j z[i, j]                                best[i] = argmax_j (z[i, j] - norm[j])
///     l[i] = log(sum_j exp(z[i, j] - m[i])) + m[i]        y[i] = sum_j z[i, j] * x[i, j]
///
/// a tile's part of each reduction is made of its registers, and kernels behind combine the parts of a row: the product
/// has no memory. Adds what it makes to `taken`, of which it makes nothing. Nothing where there is no such reduction;
/// throws Error with what was refused where none of the tiles can be built.
std::optional<ScheduledPart> rows_by_tiles(const Tensor& product, const std::vector<Tensor>& outputs,
                                           RowOperations& taken, const Target& target);

}  // namespace tw::schedules

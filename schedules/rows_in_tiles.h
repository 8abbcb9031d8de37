// What is made of a product's rows where one tile has them whole.
#pragma once
#include <optional>
#include <vector>

#include "schedules/composed_parts.h"
#include "schedules/row_reads.h"

namespace tw::schedules {

/// Of a product of matrices on tensor cores, or of a batch of them, whose rows a tile has whole, 256 columns at most:
/// reductions along rows and, beside these, elements of what they are reduced from,
///
///     top[i] = max_j z[i, j]        total[i] = sum_j exp(z[i, j] - top[i])
///     y[i, j] = exp(z[i, j] - top[i]) / total[i]
///
/// all made of the tile's registers, in the product's kernel. Memory sees what is an output, or what others read.
/// Adds what it makes to `taken`, of which it makes nothing. Nothing where there is no such reduction; throws Error
/// with what was refused where none of the tiles can be built.
std::optional<ScheduledPart> rows_in_tiles(const Tensor& product, const std::vector<Tensor>& outputs,
                                           RowOperations& taken, const Target& target);

}  // namespace tw::schedules

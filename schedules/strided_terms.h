// Sums of which only every so many a term counts, over those alone.
#pragma once
#include <vector>

#include "schedules/redeclared.h"

namespace tw::schedules {

/// Terms that count only where a multiple of a number comes out, as of transposed convolutions and polyphase filters,
///
///     y[i] = sum_r (select((i + 1 - r) % 2 == 0, x[(i + 1 - r) / 2] * w[r], 0))     with r < 4
///
/// are every so manieth, from a place on that the element says. Only these are summed, for each condition:
///
///     y[i] = sum_r (x[(i + 1) / 2 - r] * w[2 * r + (i + 1) % 2])                     with r < 2
Redeclared strided_terms(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules

// Sums over all pixels that read the same tensors, as one reduction that reads them once.
#pragma once
#include <vector>

#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of sums of f32, each of an operation over [channels] alone, over all other dimensions of the tensors that they read,
/// at the channel and those; tensors of fewer dimensions may be read beside. Those over the same extents that share a
/// tensor, the last one that is computed if any is, become outputs of one operation unless one is needed for another:
///
///     dgain[c] = sum_{n} dy[n, c] (x[n, c] - mean[c]) scale[c]        dbias[c] = sum_{n} dy[n, c]
///
/// The order of the terms stays.
Redeclared sums_together(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules

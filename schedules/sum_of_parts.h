// Sums of long rows of terms in parts, which another kernel adds.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// The sum of `parts` parts for each element, in order: few parts all at once by a thread for each element, many by
/// eight warps for 32 elements.
void schedule_sum_of_parts(Schedule& s, const Tensor& c, int64_t parts);

/// Sums of `length` terms each, which a second kernel adds; returns their stage.
Stage split_sum(Schedule& s, const Tensor& c, int64_t length);

}  // namespace tw::schedules

// Sums of long rows of terms in parts, which another kernel adds.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// The sum of `parts` parts for each element of `c`, in order: a thread has four elements, or fewer of small
/// results; neighbours, read 16 bytes at once, where parts begin at multiples of these, or else one of each step of the
/// block. Few parts are read all at once, many are shared by eight warps.
void schedule_sum_of_parts(Schedule& s, const Tensor& c, int64_t parts);

/// Sums of `length` terms each, which a second kernel adds; returns their stage.
Stage split_sum(Schedule& s, const Tensor& c, int64_t length);

}  // namespace tw::schedules

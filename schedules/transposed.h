// Copies whose contiguous dimension changes.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Schedules y[i, j] = f(x[j, i]): square tiles pass through shared memory; both sides move 16 bytes at once, eight
/// threads side by side.
void schedule_transposed(Schedule& s, const Tensor& y, const Tensor& x, TW_HERE);

}  // namespace tw::schedules

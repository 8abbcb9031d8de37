// Row-wise computations with one thread a row: reductions and what follows from them.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Schedules `y` over (row, ...) and every stage that it reads so that each thread computes whole rows: row statistics
/// stay in registers, elementwise stages of a row are inlined.
void schedule_serial_rows(Schedule& s, const Tensor& y, int64_t threads = 128, TW_HERE);

}  // namespace tw::schedules

// Gradients of gathers, and other sums whose terms each count for one row: two ways to spare the comparison of every
// index with every row.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Schedules y over (rows, width), a sum of select(index(p) == row, x(p, column), 0) over p: the terms are sorted by
/// row, and a block reduces those of one row, in their order; or each is added to its row atomically. Vectors of
/// `neighbours` columns.
void schedule_scattered_rows(Schedule& s, const Tensor& y, int64_t width, int64_t neighbours, Combine combine, TW_HERE);

/// Schedules a stage whose elements are independent, and depend on no others, such as what atomic updates start from:
/// vectors of 4, side by side.
void schedule_fill(Schedule& s, const StageRef& stage, TW_HERE);

}  // namespace tw::schedules

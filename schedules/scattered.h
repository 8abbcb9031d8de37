// Gradients of gathers, and other sums whose terms each count for one row: ways to spare each element the comparison of
// every index with its row.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Schedules y over (rows, width), a sum of select(index(p) == row, x(p, column), 0) over p: the terms are sorted by
/// row, and a block reduces those of one row, in their order; or each row looks for its terms, few in all, in one
/// kernel; or each term is added to its row atomically.
void schedule_scattered_rows(Schedule& s, const Tensor& y, int64_t rows, int64_t width, Combine combine, TW_HERE);

/// Whether looking for so many terms of so many rows takes less than sorting them.
bool searches_terms(int64_t terms, int64_t rows, int64_t width);

/// Schedules a stage whose elements are independent, and depend on no others, such as what atomic updates start from:
/// vectors of 4, side by side.
void schedule_fill(Schedule& s, const StageRef& stage, TW_HERE);

}  // namespace tw::schedules

// Gradients of gathers, and other sums whose terms each count for one row: ways to spare each element the comparison of
// every index with its row.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// How a row finds its terms: each element looks at all of them; they are sorted by row before, and each row reduces
/// its own; or blocks of rows list theirs in the same kernel. (Tuning also tries rows that look for their own.)
enum class ScatteredWay { Compared, Sorted, Listed };
/// What takes the least time, of rows that are not few (are_few_rows of sorted_terms.h).
ScatteredWay scattered_way(int64_t terms, int64_t rows, int64_t width);
/// Schedules a reduction whose terms each count for one row, over (rows.., width), by that way, or the one that is
/// picked; `outputs` are those of the schedule. Whether it did: no other reduction, nor one whose elements compare.
bool schedule_scattered(Schedule& s, Stage stage, const std::vector<Tensor>& outputs);

/// Schedules y over (rows, width), a sum of select(index(p) == row, x(p, column), 0) over p: each term is added to its
/// row atomically, in any order; of few rows with many terms, threads add those of a chunk before.
void schedule_scattered_updates(Schedule& s, const Tensor& y, TW_HERE);

/// Schedules a stage whose elements are independent, and depend on no others, such as what atomic updates start from:
/// vectors of 4, side by side.
void schedule_fill(Schedule& s, const StageRef& stage, TW_HERE);

}  // namespace tw::schedules

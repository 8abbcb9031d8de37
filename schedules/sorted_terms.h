// Sums whose terms each count for one row, shared by threads and blocks: of terms that are sorted by row, and of few
// rows.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// What is summed over [rows, width], of so many terms for all rows together.
struct ScatteredSizes {
    int64_t terms = 0, rows = 0, width = 0;
};

/// What a large GPU takes to sort terms, beside adding them: the launches of up to eight kernels, ranks, and a table.
double microseconds_to_sort(const ScatteredSizes& sizes);

/// How threads divide the rows of what is sorted.
struct SortedThreads {
    int64_t vector = 1;   ///< neighbours of a row that a thread has, at once
    int64_t parts = 1;    ///< of these, a block's width apart
    int64_t lanes = 0;    ///< threads along a row; 0: vectors of all rows are dealt out to blocks
    int64_t sharers = 1;  ///< threads that share the terms of an element
};

/// Wide rows: few blocks with several vectors a thread, as most rows may have no term and are only stored. Few rows of
/// many terms: threads share these, so that a GPU is full. Else vectors of 8, neighbours in neighbouring threads.
SortedThreads sorted_threads(const ScatteredSizes& sizes);

/// Of what is sorted (Schedule::scatter), with numbers that are picked, or those of sorted_threads: all of a row's
/// elements have the same terms, so a thread has some of them. Shared terms are added in another order, if the reducer
/// minds that, they are not shared; what steps refuse has a thread an element.
void spread_sorted(Schedule& s, Stage stage, const ScatteredSizes& sizes);

/// Whether rows are so few, and terms so many, that comparing each term with all rows takes less than sorting them, or
/// than an atomic update for each: what a thread loads then counts for one of its accumulators.
bool are_few_rows(const ScatteredSizes& sizes, Combine combine);
/// A reduction over (row, column) of terms x(p, column), by that: blocks have chunks of terms and tiles of columns,
/// threads a sum for each row; parts are added by a second kernel, or atomically.
void schedule_few_rows(Schedule& s, const Tensor& y, const Tensor& x, const ScatteredSizes& sizes, Combine combine);

}  // namespace tw::schedules

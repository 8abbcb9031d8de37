// Reductions with few results and many terms: blocks reduce chunks, a second kernel reduces their results.
#pragma once
#include <optional>

#include "dsl/schedule.h"
#include "schedules/column_threads.h"

namespace tw::schedules {

/// Where the terms of a column reduction are: the innermost loop over a thread's, around vectors of neighbours.
struct ColumnTerms {
    Loop innermost;
    int64_t vector;
};
/// Schedules `y` over columns, or over (others.., columns), whose reduce axes together are `rows` rows.
ColumnTerms schedule_column_reduction(Schedule& s, const Tensor& y, int64_t rows, const ColumnThreads& shape, TW_HERE);

/// What adds so many parts of `y`, over columns: a second kernel.
void schedule_parts_of_columns(Schedule& s, const StageRef& y, int64_t parts);

/// Schedules a scalar `y`, or few results, all of which a thread makes at once, whose reduce axes have `count` terms
/// together: vectors of `neighbours`, several in flight a thread. Combine::Atomic: the blocks add to y, without a
/// second kernel behind.
void schedule_full_reduction(Schedule& s, const StageRef& y, int64_t count, int64_t neighbours,
                             Combine combine = Combine::Workspace, TW_HERE);

/// Schedules a reduction without data axes for one block: its threads share the terms.
void schedule_block_reduction(Schedule& s, const StageRef& stage, int64_t threads = 256, int64_t neighbours = 1,
                              TW_HERE);

/// schedule_full_reduction of a scalar, or of 8 results at most, with so many terms that all threads of a block, or
/// blocks, share them, if steps and passes take it. Whether it was scheduled.
bool take_full_reduction(Schedule& s, Stage stage);

/// As many terms as make a vector of what lies side by side for neighbouring ones, 16 bytes; 1 if there is none.
int64_t neighbours_of_terms(const Schedule& s, Stage stage);

}  // namespace tw::schedules

// Results dealt out to blocks, and reductions of few of them to the threads of a warp.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Data loops fused, `results` of them, or as many as are picked, a block, neighbours in neighbouring threads.
void spread_results(Schedule& s, Stage stage, int64_t results);
/// Fewer threads than that leave most of a GPU idle.
bool has_few_results(const Schedule& s, Stage stage);
/// Of several axes with fewer terms than a warp has threads, most would have none.
bool is_worth_sharing(const Schedule& s, Stage stage);
/// Threads, as many as a warp has, more where results are few and terms many, or as are picked, share the terms of all
/// axes that are equally long everywhere, neighbours those of the last, vectors of many.
void share_reduction(Schedule& s, Stage stage);
/// Shares a reduction among the threads of a warp, or of whole blocks where it has no results but one, if that is worth
/// it. Whether it was scheduled.
bool reduce_together(Schedule& s, Stage stage);
/// Whether no reduction minds that sharing it changes the order of its terms.
bool may_reorder(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules

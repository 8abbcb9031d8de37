// Iterations of a reduction that count nothing, since conditions hold for no element of theirs.
#pragma once
#include "dsl/schedule_state.h"

namespace tw {

/// Whether what the reductions along the loop reduce is their identity wherever a condition of the stage, in its masks
/// and selects, does not hold. Throws Error naming the reduction and the select if not.
void check_skipped_terms(const Schedule::State& state, int loop, int stage, std::source_location where);

}  // namespace tw

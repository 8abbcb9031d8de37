// A schedule for any computation, by rule: what runs when nobody wrote one.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Elementwise stages are inlined, except outputs; each stage that remains is a kernel of its own. Outputs that are
/// sums of products of two matrices are tiled (schedule_product); a reduction with few results (commutative ones)
/// shares each among the threads of a warp; all else is one element a thread. Throws what the schedule's steps throw.
Schedule choose_schedule(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules

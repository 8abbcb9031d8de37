// Elementwise chains: everything inlined into the last stage, whose elements are spread over blocks and threads.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Inlines every stage that `y` reads (none may be a reduction) and gives each thread `vectors` times `per_thread`
/// neighbouring elements, neighbouring threads on neighbouring vectors.
void schedule_elementwise(Schedule& s, const Tensor& y, int64_t threads = 256, int64_t per_thread = 4,
                          int64_t vectors = 1, TW_HERE);

/// A kernel of its own for a stage that copies: 16 bytes a thread.
void schedule_dense_copy(Schedule& s, const Tensor& copy, TW_HERE);

/// A kernel of its own for one stage: a thread for each element.
void schedule_each_element(Schedule& s, const StageRef& y, int64_t threads = 128, TW_HERE);

}  // namespace tw::schedules

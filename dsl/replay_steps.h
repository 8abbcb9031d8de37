// A schedule's steps once more, one by one.
#pragma once
#include <functional>
#include <source_location>

#include "dsl/schedule.h"

namespace tw {

using SeeSchedule = std::function<void(const Schedule& so_far)>;

/// Applies the schedule's steps to a fresh schedule of the same outputs; `seen` sees it before the first step and after
/// each. Errors cite `where`.
void replay_steps(const Schedule& schedule, const SeeSchedule& seen, std::source_location where);

}  // namespace tw

// The schedule of a part of a computation, as steps of one of the whole.
#pragma once
#include <source_location>
#include <vector>

#include "dsl/schedule.h"

namespace tw {

/// Takes the part's steps on the schedule. `results` are tensors of the schedule that are declared as the part's
/// outputs are, one each, over other tensors where the part has inputs: computed ones, or other inputs, of the same
/// shapes and types. None of their stages, nor of those between, has been scheduled. Notes come along. Throws Error if
/// a result is declared otherwise, or a step is refused here: as results that others read cannot leave the way an
/// output does. The schedule is then as it was.
void follow_part(Schedule& schedule, const Schedule& part, const std::vector<Tensor>& results,
                 std::source_location where = std::source_location::current());

}  // namespace tw

// What choose_schedule takes where nothing was measured.
#pragma once
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// As ChooseSchedule says, without records of declarations.
Schedule choose_by_rule(const std::vector<Tensor>& outputs, const Target& target);

/// The same, or plain_schedule where that is picked (choices.h): the rule that records of "choose_schedule" are of.
Schedule chosen_schedule(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules

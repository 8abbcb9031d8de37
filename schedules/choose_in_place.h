// choose_schedule for outputs of which some overwrite inputs.
#pragma once
#include "dsl/schedule.h"
#include "schedules/array_operators.h"

namespace tw::schedules {

/// Throws what choose_schedule and Schedule::in_place throw.
Schedule choose_in_place(const Declared& declared, const Target& target);

}  // namespace tw::schedules

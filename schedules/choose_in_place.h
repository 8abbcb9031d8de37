// Schedules of outputs of which some overwrite inputs.
#pragma once
#include "dsl/schedule.h"
#include "schedules/declared.h"

namespace tw::schedules {

/// The schedule, of the declaration's outputs or of those that a rule declared anew in their order, with each output in
/// the place of the input that it overwrites. Pairs that the schedule has already stay. Throws what Schedule::in_place
/// throws.
Schedule overwriting(Schedule schedule, const Declared& declared);

/// Throws what choose_schedule and Schedule::in_place throw.
Schedule choose_in_place(const Declared& declared, const Target& target);

}  // namespace tw::schedules

// What a stage is made of.
#pragma once
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// The stage and those that it reads, directly or through others, producers first; inlined ones are gone. Others of the
/// schedule, such as further outputs, are none of them.
std::vector<Stage> producers_of(const Schedule& s, const Stage& stage);

/// Whether data choose an element that the stage reads. Of a row's number, that element is read before the row's
/// results are stored, which may overwrite it, and is under way while the row is reduced.
bool reads_by_data(const Schedule& s, const Stage& stage);

}  // namespace tw::schedules

// Schedules whose traces are compiled.
#pragma once
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw::fuzz {

struct Traced {
    std::string name;
    Schedule schedule;
};
/// One of each kind of kernel in the catalog, and random ones; always the same.
const std::vector<Traced>& traced_schedules();

/// The trace without the places of its steps.
std::string steps_of(const Schedule& schedule);

}  // namespace tw::fuzz

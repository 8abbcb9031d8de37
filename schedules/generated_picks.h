// What names a schedule that a search has made of a rule's: the picks of that one, and a number of the trace.
#pragma once
#include <functional>
#include <string>

#include "dsl/schedule.h"
#include "schedules/choices.h"

namespace tw::schedules {

/// "y.threads=64 generated=0f3a92c1" of y.threads=64 and the trace (Schedule::save).
Picks generated_picks(const Picks& begun_with, const std::string& trace);
bool are_generated(const Picks& picks);
/// What a search began with.
Picks without_generated(Picks picks);

/// The steps of `trace` on what the rule declares, whose schedule the search began with is `begun_with`; that itself
/// where picks are not generated. Throws Error if the trace is not the one that they name, or does not fit.
Schedule as_generated(const Picks& picks, const std::string& trace, const Schedule& begun_with);

}  // namespace tw::schedules

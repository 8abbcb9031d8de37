// Schedules that a search has made, as tilings of a tunable declaration.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "schedules/candidates.h"
#include "tuning/search_schedules.h"

namespace tw::tuning {

/// Steps of generated schedules (Schedule::save), by the text of their picks (schedules/generated_picks.h).
using GeneratedTraces = std::map<std::string, std::string>;

/// The texts of picks of at most `limit` candidates: the rule's, the first of `by_rule`, comes first; then, if there
/// are any, up to an eighth of the limit, and eight at most, that a search has made of the fastest and that the model
/// of time expects to be faster than all of these; then the others. `traces` gets what was made.
std::vector<std::string> with_generated(const std::vector<schedules::PredictedPicks>& by_rule,
                                        const std::function<Schedule()>& rule, size_t limit, SearchOptions search,
                                        GeneratedTraces& traces);

}  // namespace tw::tuning

// Schedules beyond what rules choose from: those that come from others by random changes, as long as the model of time
// expects them to be faster.
//
//   SearchResult found = search_schedules({choose_schedule({y}, target("sm_90a"))}, {.candidates = 300});
//   found.best[0].schedule.print();
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "codegen/cost/predict_time.h"
#include "dsl/schedule.h"

namespace tw::tuning {

struct SearchOptions {
    size_t candidates = 300;  ///< legal ones that are looked at, and at most eight times as many that are tried
    uint64_t seed = 1;        ///< equal ones find the same
    double seconds = 0;       ///< behind which it ends with what it has; 0: no such limit
    size_t kept = 8;          ///< the best, at most
};

struct GeneratedSchedule {
    Schedule schedule;  ///< with a trace like any other's
    codegen::Prediction time;
    std::string changes;  ///< "tiles, vector": those that made it of where it began
    size_t from = 0;      ///< of the schedules that the search began with
};
struct SearchResult {
    std::vector<GeneratedSchedule> best;  ///< the fastest first, of equal work one; none that it began with
    size_t tried = 0, legal = 0;
    std::map<std::string, size_t> refused;  ///< how often, by what was said, names and numbers left out
};

/// Begins with these schedules, of whatever they compute, and changes (mutate_schedule.h) those that are fastest by the
/// model of time, and what comes of them. What steps or passes refuse, what would take long to compile, or what gives
/// other bits from run to run where the first does not, is counted and left out. Throws Error if the first one does not
/// lower.
SearchResult search_schedules(const std::vector<Schedule>& begin, const SearchOptions& options);

}  // namespace tw::tuning

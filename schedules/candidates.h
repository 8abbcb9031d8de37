// Schedules of any declaration, to be measured: what a rule takes, and its neighbours.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "codegen/cost/predict_time.h"
#include "schedules/choose.h"
#include "schedules/tuned_declarations.h"

namespace tw::schedules {

struct Candidate {
    Schedule schedule;
    Picks picks;       ///< where it is not as the rule has it
    std::string text;  ///< "by rule", or "y: threads 128 (256 by rule), vector 4 (8)"
    double seconds;    ///< by the model of time (codegen/cost/predict_time.h)
};
struct CandidateOptions {
    size_t limit = 60;                    ///< so many, the rule's among them
    ScheduleRule rule = choose_schedule;  ///< any that asks for its choices by pick(), or calls one that does
};

/// The rule's schedule first, then those with one choice that differs, then with two, and so on, each schedule once,
/// the same at every call. What a choice makes impossible is left out; where there is room, the plain one
/// (plain_schedule.h) is among those of choose_schedule. Throws what the rule throws.
std::vector<Candidate> candidates(const std::vector<Tensor>& outputs, const Target& target,
                                  const CandidateOptions& options = {});

struct PredictedPicks {
    Picks picks;
    codegen::Prediction time;
};
/// The same as picks alone, of whatever makes a schedule; `rule` is called on this thread. Choices of what is left
/// alone ("tiles") stay as the rule has them. `seconds`: as of best_by_model.
std::vector<PredictedPicks> neighbours_of_rule(const std::function<Schedule()>& rule, size_t limit,
                                               const std::set<std::string>& left_alone = {}, double seconds = 0);
/// Of several times as many, the rule's first, then those that the model of time expects to be fastest, without those
/// that it expects to take several times as long as the best, or that take seconds to compile.
/// `seconds`: so long it looks for them, where there are more; 0: no such limit.
std::vector<PredictedPicks> best_by_model(const std::function<Schedule()>& rule, size_t limit, double seconds = 0);
/// The schedule with these picks. Throws Error where the rule has no such choices, or cannot make one here: it says
/// what the rule takes in its place, and what it offers.
Schedule schedule_with(const Picks& picks, const std::function<Schedule()>& rule);

}  // namespace tw::schedules

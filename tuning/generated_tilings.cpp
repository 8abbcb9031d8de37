#include "tuning/generated_tilings.h"

#include <algorithm>

#include "schedules/generated_picks.h"

namespace tw::tuning {
namespace {

using schedules::Picks;
using schedules::PredictedPicks;

constexpr size_t begun_with = 6;     // the fastest by the model, the rule's among them
constexpr double least_gain = 0.02;  // of the time, by the model

/// The rule's, and those that the model of time expects to be fastest.
std::vector<Picks> picks_to_begin_with(const std::vector<PredictedPicks>& by_rule) {
    std::vector<PredictedPicks> others(by_rule.begin() + 1, by_rule.end());
    std::ranges::stable_sort(others, {}, [](const PredictedPicks& each) { return each.time.seconds; });
    std::vector<Picks> some{by_rule[0].picks};
    for (const PredictedPicks& each : others)
        if (some.size() < begun_with) some.push_back(each.picks);
    return some;
}

}  // namespace

std::vector<std::string> with_generated(const std::vector<PredictedPicks>& by_rule,
                                        const std::function<Schedule()>& rule, size_t limit, SearchOptions search,
                                        GeneratedTraces& traces) {
    constexpr size_t most = 8;
    std::vector<std::string> texts{schedules::picks_text(by_rule[0].picks)};
    search.kept = std::min(limit / 8, most);
    if (search.kept > 0 && search.candidates > 0) {
        const std::vector<Picks> begun = picks_to_begin_with(by_rule);
        std::vector<Schedule> begin;
        for (const Picks& picks : begun) begin.push_back(schedules::schedule_with(picks, rule));
        double least = by_rule[0].time.seconds;
        for (const PredictedPicks& each : by_rule) least = std::min(least, each.time.seconds);
        for (const GeneratedSchedule& each : search_schedules(begin, search).best) {
            if (each.time.seconds > (1 - least_gain) * least) break;
            const std::string trace = each.schedule.save();
            texts.push_back(schedules::picks_text(schedules::generated_picks(begun[each.from], trace)));
            traces[texts.back()] = trace;
        }
    }
    for (size_t k = 1; k < by_rule.size() && texts.size() < limit; ++k)
        texts.push_back(schedules::picks_text(by_rule[k].picks));
    return texts;
}

}  // namespace tw::tuning

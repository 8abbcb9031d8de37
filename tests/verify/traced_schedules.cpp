#include "tests/verify/traced_schedules.h"

#include <cctype>
#include <set>

#include "schedules/catalog.h"
#include "support/error.h"
#include "verify/random_step.h"

namespace tw::fuzz {
namespace {

constexpr uint64_t num_random = 60;

Schedule random_schedule(uint64_t number) {
    Random random(1, number);
    const auto& all = computations();
    Problem problem = all[number % all.size()].make(random);
    Schedule s(problem.outputs, target("sm_90a"));
    for (int tried = 0; tried < 60 && s.trace().size() < 14; ++tried) {
        Schedule next = s;
        try {
            perform(random_step(random, s, problem), next, problem);
        } catch (const Error&) {
            continue;
        }
        s = next;
    }
    return s;
}

std::vector<Traced> make() {
    std::vector<Traced> made;
    std::set<std::string> kinds;
    for (const auto& entry : schedules::catalog()) {
        std::string kind = entry.name.substr(0, entry.name.find_first_of("0123456789"));
        if (kinds.insert(kind).second) made.push_back({entry.name, entry.make(target("sm_90a"))});
    }
    for (uint64_t number = 0; number < num_random; ++number)
        made.push_back({fmt::format("random_{}", number), random_schedule(number)});
    return made;
}

}  // namespace

const std::vector<Traced>& traced_schedules() {
    static const std::vector<Traced> all = make();
    return all;
}

std::string steps_of(const Schedule& schedule) {
    std::string text;
    for (const Step& step : schedule.trace()) text += step.handles + step.text + "\n";
    return text;
}

}  // namespace tw::fuzz

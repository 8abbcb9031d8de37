#include "schedules/choices.h"
#include "schedules/choose.h"
#include "schedules/choose_by_rule.h"
#include "schedules/plain_schedule.h"
#include "schedules/tuned_declarations.h"
#include "support/error.h"

namespace tw::schedules {

Schedule ChooseSchedule::operator()(const std::vector<Tensor>& outputs, const Target& target,
                                    std::source_location where) const {
    CalledFrom caller(where);
    return schedule_as_tuned(outputs, target, "choose_schedule", [](const auto& declared, const Target& wanted) {
        const std::string way = pick("", "schedule", {"chosen", "plain"}, "chosen");
        return way == "plain" ? plain_schedule(declared, wanted) : choose_by_rule(declared, wanted);
    });
}

}  // namespace tw::schedules

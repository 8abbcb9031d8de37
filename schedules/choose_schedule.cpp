#include "schedules/choices.h"
#include "schedules/choose.h"
#include "schedules/choose_by_rule.h"
#include "schedules/kept_columns.h"
#include "schedules/plain_schedule.h"
#include "schedules/tuned_declarations.h"
#include "support/error.h"

namespace tw::schedules {

Schedule chosen_schedule(const std::vector<Tensor>& outputs, const Target& target) {
    const std::string way = pick("", "schedule", {"chosen", "plain"}, "chosen");
    if (way == "plain") return plain_schedule(outputs, target);
    return with_kept_columns(outputs, target, [&] { return choose_by_rule(outputs, target); });
}

Schedule ChooseSchedule::operator()(const std::vector<Tensor>& outputs, const Target& target,
                                    std::source_location where) const {
    CalledFrom caller(where);
    user_check(!outputs.empty(), where, "choose_schedule: needs at least one output tensor");
    return schedule_as_tuned(outputs, target, "choose_schedule", chosen_schedule);
}

}  // namespace tw::schedules

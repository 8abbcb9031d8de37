#include "schedules/plain_schedule.h"

#include <algorithm>

#include "schedules/elementwise.h"

namespace tw::schedules {

Schedule plain_schedule(const std::vector<Tensor>& outputs, const Target& target) {
    Schedule s(outputs, target);
    auto is_output = [&](const Stage& stage) {
        return std::ranges::any_of(outputs, [&](const Tensor& output) { return s[output].id == stage.id; });
    };
    for (const Stage& stage : s.all_stages())
        if (!s.reduces(stage) && !is_output(stage)) s.inline_stage(stage);
    for (const Stage& stage : s.all_stages()) schedule_each_element(s, stage);
    return s;
}

}  // namespace tw::schedules

#include "schedules/choose_in_place.h"

#include <algorithm>

#include "dsl/edit.h"
#include "schedules/choose.h"

namespace tw::schedules {

Schedule overwriting(Schedule schedule, const Declared& declared) {
    if (declared.in_place.empty()) return schedule;
    const auto known = schedule.tree().in_place;
    const std::vector<Tensor> outputs = schedule.outputs();
    for (const auto& [out, in] : declared.in_place) {
        const auto is_it = [&](const auto& pair) {
            return pair.first->name == out.name() && pair.second->name == in.name();
        };
        if (std::ranges::any_of(known, is_it)) continue;
        for (size_t k = 0; k < outputs.size(); ++k)
            if (declared.outputs[k].same(out)) {
                const TreesLater later;
                schedule.in_place(outputs[k], in);
            }
    }
    schedule.tree();
    return schedule;
}

Schedule choose_in_place(const Declared& declared, const Target& target) {
    return overwriting(choose_schedule(declared.outputs, target), declared);
}

}  // namespace tw::schedules

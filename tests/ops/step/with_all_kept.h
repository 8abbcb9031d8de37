// What a plan that makes groups again is compared with.
#pragma once
#include <map>
#include <numeric>
#include <vector>

#include "ops/step/plan_access.h"
#include "ops/step/step_hazards.h"

namespace tw {

/// The same groups in the same order, but none a second time: all is kept that they read.
inline StepPlan with_all_kept(StepPlan plan) {
    std::map<int, int> kept;  // values, by what repeats them
    for (const StepGroup& group : plan.groups)
        if (group.again_of >= 0)
            for (size_t k = 0; k < group.writes.size(); ++k)
                kept[group.writes[k]] = plan.groups[static_cast<size_t>(group.again_of)].writes[k];
    std::vector<int> first, again;
    for (int g = 0; g < num_groups(plan); ++g) (group_at(plan, g).again_of < 0 ? first : again).push_back(g);
    for (StepGroup& group : plan.groups)
        for (int& read : group.reads)
            while (kept.contains(read)) read = kept[read];
    const size_t count = first.size();
    first.insert(first.end(), again.begin(), again.end());
    reorder(plan, first);
    plan.groups.resize(count);
    std::erase_if(plan.values, [&](const StepValue& value) { return value.made >= static_cast<int>(count); });
    first.resize(count);
    std::iota(first.begin(), first.end(), 0);
    reorder(plan, first);  // notes last uses
    place_values(plan);
    order_by_hazards(plan);
    return plan;
}

}  // namespace tw

#include "ops/step/step_hazards.h"

#include <algorithm>

namespace tw {

std::vector<StepAccess> accesses_of(const StepPlan& plan, const StepGroup& group) {
    std::vector<StepAccess> result;
    auto add = [&](int index, bool writes) {
        const StepValue& value = plan.values[static_cast<size_t>(index)];
        switch (value.place) {
            case StepValue::Place::Arena:
                result.push_back({-1, value.offset, value.offset + value.bytes, writes});
                break;
            case StepValue::Place::Given:
                result.push_back(
                    {value.part_of < 0 ? index : value.part_of, value.offset, value.offset + value.bytes, writes});
                break;
            case StepValue::Place::Replaced: result.push_back({value.replaces, 0, value.bytes, writes}); break;
        }
    };
    for (int value : group.reads) add(value, false);
    for (int value : group.writes) add(value, true);
    for (const StepWorkspace& workspace : group.workspaces)
        if (!workspace.is_counter) result.push_back({-1, workspace.offset, workspace.offset + workspace.bytes, true});
    return result;
}

bool conflict(const std::vector<StepAccess>& one, const std::vector<StepAccess>& other) {
    return std::ranges::any_of(one, [&](const StepAccess& a) {
        return std::ranges::any_of(other, [&](const StepAccess& b) {
            return a.memory == b.memory && (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
        });
    });
}

std::vector<std::set<int>> waits_of(const StepPlan& plan) {
    std::vector<std::set<int>> waits(plan.groups.size());
    for (size_t g = 0; g < plan.groups.size(); ++g)
        for (int before : plan.groups[g].after) {
            if (before < 0 || static_cast<size_t>(before) >= g) continue;  // a fault; see faults_of
            waits[g].insert(before);
            waits[g].insert(waits[static_cast<size_t>(before)].begin(), waits[static_cast<size_t>(before)].end());
        }
    return waits;
}

void order_by_hazards(StepPlan& plan) {
    std::vector<std::vector<StepAccess>> accesses;
    std::vector<std::set<int>> waits(plan.groups.size());
    for (size_t g = 0; g < plan.groups.size(); ++g) {
        accesses.push_back(accesses_of(plan, plan.groups[g]));
        plan.groups[g].after.clear();
        for (size_t before = g; before-- > 0;) {  // the nearest first: most others are behind those
            if (waits[g].contains(static_cast<int>(before)) || !conflict(accesses[before], accesses[g])) continue;
            plan.groups[g].after.push_back(static_cast<int>(before));
            waits[g].insert(static_cast<int>(before));
            waits[g].insert(waits[before].begin(), waits[before].end());
        }
    }
}

}  // namespace tw

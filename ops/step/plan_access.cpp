#include "ops/step/plan_access.h"

#include <algorithm>

#include "ops/step/place_in_arena.h"

namespace tw {
namespace {

void note_last_uses(StepPlan& plan) {
    for (StepValue& value : plan.values) value.last = value.made;
    for (int g = 0; g < num_groups(plan); ++g)
        for (int read : group_at(plan, g).reads) value_at(plan, read).last = std::max(value_at(plan, read).last, g);
}

}  // namespace

std::vector<std::vector<int>> readers_of(const StepPlan& plan) {
    std::vector<std::vector<int>> readers(plan.values.size());
    for (int g = 0; g < num_groups(plan); ++g)
        for (int read : group_at(plan, g).reads) readers[static_cast<size_t>(read)].push_back(g);
    return readers;
}

std::map<int, int> overwriters_of(const StepPlan& plan) {
    std::map<int, int> overwriters;
    for (const StepValue& value : plan.values)
        if (value.place == StepValue::Place::Replaced) overwriters[value.replaces] = value.made;
    for (size_t v = 0; v < plan.values.size(); ++v)
        if (const auto whole = overwriters.find(plan.values[v].part_of); whole != overwriters.end())
            overwriters[static_cast<int>(v)] = whole->second;
    return overwriters;
}

bool overwrites_input(const StepPlan& plan, const StepGroup& group) {
    return !group.declared.in_place.empty() || std::ranges::any_of(group.writes, [&](int written) {
        return value_at(plan, written).place == StepValue::Place::Replaced;
    });
}

void reorder(StepPlan& plan, const std::vector<int>& order) {
    std::vector<int> place(order.size());
    std::vector<StepGroup> groups;
    for (size_t k = 0; k < order.size(); ++k) {
        place[static_cast<size_t>(order[k])] = static_cast<int>(k);
        groups.push_back(std::move(group_at(plan, order[k])));
    }
    const auto now = [&](int group) { return group < 0 ? group : place[static_cast<size_t>(group)]; };
    for (StepGroup& group : groups) group.again_of = now(group.again_of);
    for (StepValue& value : plan.values) value.made = now(value.made);
    plan.groups = std::move(groups);
    note_last_uses(plan);
}

void place_values(StepPlan& plan) {
    std::vector<ArenaRequest> requests;
    std::vector<int64_t*> offsets;
    for (StepValue& value : plan.values) {
        if (!is_between(value)) continue;
        requests.push_back({value.bytes, value.made, value.last});
        offsets.push_back(&value.offset);
    }
    for (int g = 0; g < num_groups(plan); ++g)
        for (StepWorkspace& workspace : group_at(plan, g).workspaces) {
            if (workspace.is_counter) continue;
            requests.push_back({workspace.bytes, g, g});
            offsets.push_back(&workspace.offset);
        }
    const ArenaPlacement placement = place_in_arena(requests);
    for (size_t k = 0; k < offsets.size(); ++k) *offsets[k] = placement.offsets[k];
    plan.arena_bytes = placement.bytes;
    plan.most_alive = placement.most_alive;
    plan.placement = placement.method;
}

}  // namespace tw

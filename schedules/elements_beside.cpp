#include "schedules/elements_beside.h"

#include <algorithm>
#include <functional>
#include <set>

#include "schedules/producers.h"

namespace tw::schedules {
namespace {

bool is_output(const Schedule& s, Stage stage) {
    return std::ranges::any_of(s.outputs(), [&](const Tensor& t) { return s[t].id == stage.id; });
}

/// Whether a large part of what the one reads is read, or stored, by the other.
bool share_operands(const Elements& one, const Elements& other) {
    return std::ranges::any_of(one.accesses, [&](const ElementAccess& access) {
        return !access.is_store && size_of(*access.buffer).value_or(one.count()) >= one.count() / 4 &&
               std::ranges::any_of(other.accesses,
                                   [&](const ElementAccess& own) { return own.buffer == access.buffer; });
    });
}

/// Whether a stage outside of the group is made of one of the group's, and read by another one's makers.
bool waits_for_others(const Schedule& s, const std::vector<Stage>& group) {
    std::set<int> own;
    for (const Stage& stage : group) own.insert(stage.id);
    for (const Stage& stage : group)
        for (const Stage& producer : producers_of(s, stage)) {
            if (own.contains(producer.id)) continue;
            for (const Stage& before : producers_of(s, producer))
                if (own.contains(before.id)) return true;
        }
    return false;
}

void collect_stages(const Stmt& stmt, std::set<int>& stages) {
    if (const Leaf* leaf = stmt.as<Leaf>()) stages.insert(leaf->stage);
    if (const For* loop = stmt.as<For>()) collect_stages(loop->body, stages);
    if (const Allocate* allocation = stmt.as<Allocate>()) collect_stages(allocation->body, stages);
    if (const Sequence* sequence = stmt.as<Sequence>())
        for (const Stmt& each : sequence->stmts) collect_stages(each, stages);
}

}  // namespace

std::vector<Stage> outputs_beside(const Schedule& s, Stage stage, const Elements& elements) {
    std::vector<Stage> group{stage};
    if (!is_output(s, stage)) return {};
    for (const Stage& other : s.all_stages()) {
        if (other.id == stage.id || s.reduces(other) || !is_output(s, other)) continue;
        const auto own = elements_of(s, other);
        if (!own || own->extents != elements.extents) continue;
        if (!share_operands(elements, *own) && !share_operands(*own, elements)) continue;
        group.push_back(other);
        if (waits_for_others(s, group)) group.pop_back();
    }
    group.erase(group.begin());
    return group;
}

Elements together(const Schedule& s, const Elements& elements, const std::vector<Stage>& beside) {
    Elements all = elements;
    for (const Stage& stage : beside) {
        const Elements own = *elements_of(s, stage);
        Substitution loops;
        for (size_t l = 0; l < own.loops.size(); ++l) loops.emplace_back(own.loops[l], all.loops[l]);
        for (ElementAccess access : own.accesses) {
            access.place = substitute(access.place, loops);
            all.accesses.push_back(access);
        }
        all.operations += own.operations;
        all.depth = std::max(all.depth, own.depth);
    }
    return all;
}

bool stands_beside(const Schedule& s, Stage stage) {
    return std::ranges::any_of(s.tree().nests, [&](const Nest& nest) {
        std::set<int> stages;
        collect_stages(nest.body, stages);
        return stages.contains(stage.id) && stages.size() > 1;
    });
}

}  // namespace tw::schedules

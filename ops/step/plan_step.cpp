#include <algorithm>
#include <functional>
#include <map>

#include "ops/bound_arguments.h"
#include "ops/step/cut_step.h"
#include "ops/step/place_in_arena.h"
#include "ops/step/step_hazards.h"
#include "ops/step/step_plan.h"
#include "support/error.h"

namespace tw {
namespace {

class Planning {
public:
    Planning(const StepGraph& graph, GroupSchedules& schedules) : graph_(graph), schedules_(schedules) {}

    using Regions = std::function<std::vector<RegionOfPlan>(const std::function<int(const Tensor&)>& value_of)>;
    StepPlan plan(const Regions& regions, int64_t most_bytes, std::source_location where) && {
        StepCut cut = cut_step(graph_, schedules_);
        plan_.apart = std::move(cut.apart);
        for (const Tensor& given : graph_.inputs) value_for(given).place = StepValue::Place::Given;
        for (const std::vector<int>& nodes : cut.groups) add_group(nodes);
        for (const Tensor& result : graph_.results) return_result(result);
        for (const auto& [out, in] : graph_.overwrites) replace(out, in);
        place();
        make_regions_again(regions([&](const Tensor& tensor) {
            const auto known = indices_.find(key_of(tensor));
            return known == indices_.end() ? -1 : known->second;
        }));
        if (most_bytes > 0) fit_into(most_bytes, where);
        order_by_hazards(plan_);
        return std::move(plan_);
    }

private:
    int index_of(const Tensor& tensor) {
        const auto [entry, is_new] = indices_.try_emplace(key_of(tensor), static_cast<int>(plan_.values.size()));
        if (is_new) plan_.values.push_back(declared(tensor));
        return entry->second;
    }
    StepValue& value_for(const Tensor& tensor) { return plan_.values[static_cast<size_t>(index_of(tensor))]; }

    static std::string name_of(const StepNode& node) {
        if (node.own_schedule) return node.own_schedule->name;
        return node.is_copy ? "copy of " + node.operation->name : node.operation->name;
    }

    StepValue declared(const Tensor& tensor) const {
        StepValue value{.name = tensor.name(), .type = graph_.type_of(tensor), .shape = {}, .strides = {}};
        for (const Expr& extent : tensor.shape()) value.shape.push_back(require_constant(extent));
        for (const Expr& stride : tensor.operation()->strides) value.strides.push_back(require_constant(stride));
        if (value.strides.empty()) value.strides = dense_strides(value.shape);
        value.bytes = span_elements(value.shape, value.strides) * bytes_of(value.type);
        return value;
    }

    void add_group(const std::vector<int>& nodes) {
        const int index = static_cast<int>(plan_.groups.size());
        GroupDeclaration group = declare_group(graph_, nodes);
        const GroupSchedule& schedule = schedules_.of(group);
        StepGroup result;
        result.declared = std::move(group.declared);
        result.selection = schedule.selection;
        result.seconds = schedule.seconds;
        for (int node : nodes) result.operations.push_back(name_of(graph_.nodes[static_cast<size_t>(node)]));
        for (const Tensor& input : group.inputs) result.inputs.push_back(input.name());
        for (const Tensor& read : group.reads) result.reads.push_back(index_of(read));
        for (const Tensor& written : group.writes) result.writes.push_back(index_of(written));
        for (int read : result.reads) plan_.values[static_cast<size_t>(read)].last = index;
        for (int written : result.writes) {
            plan_.values[static_cast<size_t>(written)].made = index;
            plan_.values[static_cast<size_t>(written)].last = index;
        }
        for (const BufferRef& workspace : schedule.selection->program.tree().workspaces)
            result.workspaces.push_back({.bytes = bytes_spanned(*workspace, {}), .is_counter = workspace->is_counter});
        plan_.groups.push_back(std::move(result));
    }

    void return_result(const Tensor& tensor) {
        StepValue& value = value_for(tensor);
        value.place = StepValue::Place::Given;
        value.is_result = true;
        plan_.results.push_back(index_of(tensor));
    }
    void replace(const Tensor& out, const Tensor& in) {
        StepValue& value = value_for(out);
        value.place = StepValue::Place::Replaced;
        value.replaces = index_of(in);
    }

    /// A place in the arena for all that is needed between groups, and for what a group's kernels need.
    void place() {
        std::vector<ArenaRequest> requests;
        std::vector<int64_t*> offsets;
        for (StepValue& value : plan_.values) {
            if (value.place != StepValue::Place::Arena) continue;
            requests.push_back({value.bytes, value.made, value.last});
            offsets.push_back(&value.offset);
        }
        for (size_t g = 0; g < plan_.groups.size(); ++g)
            for (StepWorkspace& workspace : plan_.groups[g].workspaces) {
                if (workspace.is_counter) continue;
                requests.push_back({workspace.bytes, static_cast<int>(g), static_cast<int>(g)});
                offsets.push_back(&workspace.offset);
            }
        const ArenaPlacement placement = place_in_arena(requests);
        for (size_t k = 0; k < offsets.size(); ++k) *offsets[k] = placement.offsets[k];
        plan_.arena_bytes = placement.bytes;
        plan_.most_alive = placement.most_alive;
        plan_.placement = placement.method;
    }

    void make_regions_again(const std::vector<RegionOfPlan>& regions) {
        if (regions.empty()) return;
        order_for_memory(plan_);
        make_again(plan_, regions);
        place();
    }

    /// By the least of what is needed at a time, as long as that is too much; then by placements.
    void fit_into(int64_t most_bytes, std::source_location where) {
        if (plan_.arena_bytes <= most_bytes) return;
        int64_t least = plan_.arena_bytes;
        order_for_memory(plan_);
        for (bool goes_on = true; goes_on;) {
            while (goes_on && most_bytes_alive(plan_) > most_bytes) goes_on = make_cheapest_again(plan_);
            place();
            least = std::min(least, plan_.arena_bytes);
            if (plan_.arena_bytes <= most_bytes) return;
            goes_on = goes_on && make_cheapest_again(plan_);
        }
        user_error(where,
                   "plan_step: recompute.bytes = {}: the arena has {} at least, with all made again that saves memory; "
                   "allow that many, or make the step smaller",
                   most_bytes, least);
    }

    const StepGraph& graph_;
    GroupSchedules& schedules_;
    std::map<TensorKey, int> indices_;
    StepPlan plan_;
};

/// The graph in which parts whose schedules refuse are what they are made of, and why they do.
std::pair<StepGraph, std::vector<std::string>> graph_of(const MixedStep& mixed, GroupSchedules& schedules,
                                                        std::source_location where) {
    OpenedParts opened;
    std::vector<std::string> refused;
    while (true) {
        StepGraph graph = step_graph(mixed.step, opened, where);
        for (const auto& [tensor, type] : mixed.stored) graph.stored[key_of(tensor)] = type;
        const size_t before = opened.size();
        for (size_t node = 0; node < graph.nodes.size(); ++node) {
            const auto& own = graph.nodes[node].own_schedule;
            if (!own) continue;
            const GroupSchedule& schedule = schedules.of(declare_group(graph, {static_cast<int>(node)}));
            if (schedule.selection || !opened.insert(own.get()).second) continue;
            const std::string told = fmt::format("'{}': {}", own->name, schedule.problem);
            if (std::ranges::find(refused, told) == refused.end()) refused.push_back(told);
        }
        if (opened.size() == before) return {std::move(graph), std::move(refused)};
    }
}

}  // namespace

StepPlan plan_step(const schedules::Declared& step, const Target& target, const Registry& registry,
                   const StepOptions& options, std::source_location where) {
    CalledFrom caller(where);
    user_check(options.recompute.bytes >= 0, where,
               "plan_step: recompute.bytes = {}: a number of bytes, or 0 for an arena of any size",
               options.recompute.bytes);
    MixedStep mixed = mixed_precision(step, options.mixed, where);
    GroupSchedules schedules(registry, target, options.preferences);
    auto [graph, refused] = graph_of(mixed, schedules, where);
    const auto regions = [&](const std::function<int(const Tensor&)>& value_of) {
        return regions_of(options.recompute.regions, step, mixed.step, graph, value_of);
    };
    StepPlan plan = Planning(graph, schedules).plan(regions, options.recompute.bytes, where);
    plan.refused = std::move(refused);
    plan.rounded = std::move(mixed.rounded);
    return plan;
}

}  // namespace tw

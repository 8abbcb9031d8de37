#include <algorithm>
#include <functional>

#include "ops/step/assemble_plan.h"
#include "ops/step/canonicalise.h"
#include "ops/step/cut_step.h"
#include "ops/step/lay_out.h"
#include "ops/step/order_for_memory.h"
#include "ops/step/plan_access.h"
#include "ops/step/step_hazards.h"
#include "ops/step/step_memory_work.h"
#include "ops/step/step_plan.h"
#include "support/error.h"

namespace tw {
namespace {

/// The graph in which parts whose schedules refuse are what they are made of, and why they do.
std::pair<StepGraph, std::vector<std::string>> graph_of(const schedules::Declared& step,
                                                        const std::vector<std::pair<Tensor, Type>>& stored,
                                                        const std::vector<InputPart>& parts, GroupSchedules& schedules,
                                                        std::source_location where) {
    OpenedParts opened;
    std::vector<std::string> refused;
    while (true) {
        StepGraph graph = step_graph(step, opened, parts, where);
        for (const auto& [tensor, type] : stored) graph.stored[key_of(tensor)] = type;
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

/// What passes hand on. Up to the cut a step is a declaration, then a plan.
class Planning {
public:
    Planning(const schedules::Declared& step, const Target& target, const Registry& registry,
             const StepOptions& options, std::source_location where)
        : step_(step),
          regions_(options.recompute.regions),
          options_(options),
          where_(where),
          schedules_(registry, target, options.preferences) {}

    // ---- the passes -------------------------------------------------------------------------------------------------

    void canonicalise() {
        CanonicalStep canonical = tw::canonicalise(step_, regions_, options_.mixed.keep);
        step_ = std::move(canonical.step);
        regions_ = std::move(canonical.regions);
        simplified_ = std::move(canonical.simplified);
    }
    void round() {
        MixedStep mixed = mixed_precision(step_, options_.mixed, where_);
        declared_ = std::exchange(step_, std::move(mixed.step));
        stored_ = std::move(mixed.stored);
        rounded_ = std::move(mixed.rounded);
    }
    void layout() {
        cut_.step = {step_, stored_};
        cut_.graph = graph_of(cut_.step);
        const StepCutting cutting{.graph_of = [&](const StoredStep& step) { return graph_of(step); },
                                  .cut = [&](const StepGraph& graph) { return cut_of(graph); },
                                  .schedules = schedules_};
        std::optional<LaidOutStep> found;
        if (options_.lay_out) found = lay_out(cut_.step, cut_.graph, cutting);
        if (!found) return;
        cut_ = std::move(found->step);
        laid_out_ = std::move(found->laid_out);
        step_ = cut_.step.step;
    }
    void cut() {
        const StepGraph& graph = cut_.graph;
        if (cut_.cut.groups.empty()) cut_.cut = cut_of(graph);
        AssembledPlan assembled = assemble_plan(graph, cut_.cut, schedules_);
        const auto values_of = [&](const std::vector<Tensor>& tensors) {
            std::set<int> values;
            for (const Tensor& tensor : tensors)
                if (const auto known = assembled.value_of.find(key_of(tensor)); known != assembled.value_of.end())
                    values.insert(known->second);
            return values;
        };
        for (const StepRegion& region : graph.regions)
            regions_of_plan_.push_back({values_of(region.inside), values_of(region.results)});
        plan_ = std::move(assembled.plan);
        if (options_.memory_nodes)
            for (StepGroup& group : plan_.groups) group.memory = memory_work_of(group);
        plan_.refused = std::move(refused_);
        plan_.laid_out = std::move(laid_out_);
        plan_.rounded = std::move(rounded_);
        plan_.simplified = std::move(simplified_);
    }
    void order() { order_where_smaller(plan_); }
    void recompute() {
        if (!regions_of_plan_.empty()) {
            make_again(plan_, regions_of_plan_);
            place_values(plan_);
        }
        if (options_.recompute.bytes > 0) fit_into(plan_, options_.recompute.bytes, where_);
    }
    void place() { complete(plan_); }

    // ---- running them -----------------------------------------------------------------------------------------------

    /// A plan is shown as if no pass came behind.
    void show(std::string_view pass) const {
        if (!options_.watch) return;
        if (plan_.groups.empty()) return options_.watch({pass, step_});
        StepPlan plan = plan_;
        complete(plan);
        options_.watch({pass, step_, &plan});
    }
    StepPlan plan() && { return std::move(plan_); }

private:
    StepGraph graph_of(const StoredStep& step) {
        auto [graph, refused] = tw::graph_of(step.step, step.stored, options_.parts, schedules_, where_);
        graph.regions = regions_of(regions_, declared_, step.step, graph);
        refused_ = std::move(refused);
        return std::move(graph);
    }
    StepCut cut_of(const StepGraph& graph) {
        return options_.join ? cut_step(graph, schedules_) : separate_step(graph, schedules_);
    }
    static void complete(StepPlan& plan) {
        place_values(plan);
        order_by_hazards(plan);
    }

    schedules::Declared step_, declared_;  // as it is now; before it was rounded
    std::vector<MadeBetween> regions_;
    const StepOptions& options_;
    const std::source_location where_;
    GroupSchedules schedules_;
    std::vector<std::pair<Tensor, Type>> stored_;
    CutStep cut_;
    std::vector<std::string> rounded_, simplified_, refused_, laid_out_;
    std::vector<RegionOfPlan> regions_of_plan_;
    StepPlan plan_;
};

struct StepPass {
    const char* name;
    void (Planning::*run)();
};
constexpr StepPass passes[] = {
    {"canonicalise", &Planning::canonicalise},  //
    {"round", &Planning::round},                //
    {"layout", &Planning::layout},              //
    {"cut", &Planning::cut},                    //
    {"order", &Planning::order},                //
    {"recompute", &Planning::recompute},        //
    {"place", &Planning::place},                //
};

}  // namespace

std::vector<std::string> step_pass_names() {
    std::vector<std::string> names;
    for (const StepPass& pass : passes) names.push_back(pass.name);
    return names;
}

StepPlan plan_step(const schedules::Declared& step, const Target& target, const Registry& registry,
                   const StepOptions& options, std::source_location where) {
    CalledFrom caller(where);
    user_check(options.recompute.bytes >= 0, where,
               "plan_step: recompute.bytes = {}: a number of bytes, or 0 for an arena of any size",
               options.recompute.bytes);
    Planning planning(step, target, registry, options, where);
    planning.show("declared");
    for (const StepPass& pass : passes) {
        (planning.*pass.run)();
        planning.show(pass.name);
    }
    StepPlan plan = std::move(planning).plan();
    plan.branches = options.branches;
    return plan;
}

}  // namespace tw

#include "ops/step/assemble_plan.h"

#include "ops/bound_arguments.h"

namespace tw {
namespace {

class Assembling {
public:
    Assembling(const StepGraph& graph, GroupSchedules& schedules) : graph_(graph), schedules_(schedules) {}

    AssembledPlan plan(const StepCut& cut) && {
        plan_.joined = cut.joined;
        plan_.apart = cut.apart;
        for (const Tensor& given : graph_.inputs) value_for(given).place = StepValue::Place::Given;
        for (const InputPart& each : graph_.input_parts) {
            const int whole = index_of(each.whole);
            StepValue& part = value_for(each.part);
            part.part_of = whole;
            part.offset = each.first * bytes_of(part.type);
        }
        for (const std::vector<int>& nodes : cut.groups) add_group(nodes);
        for (const Tensor& result : graph_.results) return_result(result);
        for (const auto& [out, in] : graph_.overwrites) replace(out, in);
        return {std::move(plan_), std::move(indices_)};
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
        for (int node : nodes) {
            result.operations.push_back(name_of(graph_.nodes[static_cast<size_t>(node)]));
            result.scopes.push_back(graph_.nodes[static_cast<size_t>(node)].operation->scope);
        }
        result.declared_as = std::move(group.names);
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

    const StepGraph& graph_;
    GroupSchedules& schedules_;
    std::map<TensorKey, int> indices_;
    StepPlan plan_;
};

}  // namespace

AssembledPlan assemble_plan(const StepGraph& graph, const StepCut& cut, GroupSchedules& schedules) {
    return Assembling(graph, schedules).plan(cut);
}

}  // namespace tw

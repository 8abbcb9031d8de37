#include "ops/step/interpret_step.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "dsl/check_bindings.h"

namespace tw {
namespace {

class Interpreting {
public:
    Interpreting(const StepPlan& plan, const Bindings& bindings)
        : plan_(plan), arena_(static_cast<size_t>(plan.arena_bytes), std::byte{0xff}) {
        for (const StepValue& value : plan.values) {
            HostArray array{.type = value.type, .shape = value.shape, .strides = value.strides, .bytes = {}};
            array.bytes.resize(static_cast<size_t>(value.bytes), std::byte{0xff});
            const bool is_input = value.place == StepValue::Place::Given && value.made < 0;
            own_.push_back(is_input ? bound(array, value.name, bindings) : array);
        }
    }

    void run(const StepGroup& group) {
        Bindings bindings;
        for (size_t k = 0; k < group.reads.size(); ++k) bindings.inputs[group.inputs[k]] = load(group.reads[k]);
        for (const auto& operation : operations_of(group.declared.outputs))
            if (operation->is_input()) reshape(bindings.inputs.at(operation->name), operation->shape);
        const std::vector<HostArray> made = interpret_plain(group.declared.outputs, bindings);
        for (size_t k = 0; k < made.size(); ++k) store(group.writes[k], made[k]);
        for (const StepWorkspace& workspace : group.workspaces)
            if (!workspace.is_counter) std::fill_n(at(workspace.offset), workspace.bytes, std::byte{0xff});
    }

    HostArray load(int index) const {
        const StepValue& value = plan_.values[static_cast<size_t>(index)];
        if (value.place == StepValue::Place::Replaced) return own_[static_cast<size_t>(value.replaces)];
        HostArray array = own_[static_cast<size_t>(index)];
        if (value.place == StepValue::Place::Arena)
            std::copy_n(arena_.begin() + value.offset, value.bytes, array.bytes.begin());
        return array;
    }

private:
    /// An input lies where a tensor of another shape does.
    static void reshape(HostArray& array, const std::vector<Expr>& shape) {
        std::vector<int64_t> extents;
        for (const Expr& extent : shape) extents.push_back(require_constant(extent));
        if (extents == array.shape) return;
        array.strides = dense_strides(extents);
        array.shape = std::move(extents);
    }
    static HostArray bound(const HostArray& declared, const std::string& name, const Bindings& bindings) {
        std::vector<Expr> shape, strides;
        for (int64_t extent : declared.shape) shape.push_back(tw::integer(extent));
        if (declared.strides != dense_strides(declared.shape))
            for (int64_t stride : declared.strides) strides.push_back(tw::integer(stride));
        return bound_input(name, declared.type, shape, strides, bindings);
    }
    std::vector<std::byte>::iterator at(int64_t offset) { return arena_.begin() + offset; }

    void store(int index, const HostArray& array) {
        const StepValue& value = plan_.values[static_cast<size_t>(index)];
        if (value.place == StepValue::Place::Arena)
            std::ranges::copy(array.bytes, at(value.offset));
        else
            own_[static_cast<size_t>(value.place == StepValue::Place::Replaced ? value.replaces : index)] = array;
    }

    const StepPlan& plan_;
    std::vector<std::byte> arena_;
    std::vector<HostArray> own_;  // one a value, used of those outside of the arena
};

}  // namespace

std::vector<HostArray> interpret_step(const StepPlan& plan, const Bindings& bindings, const std::vector<int>& order) {
    std::vector<int> groups = order;
    if (groups.empty()) {
        groups.resize(plan.groups.size());
        std::iota(groups.begin(), groups.end(), 0);
    }
    Interpreting interpreting(plan, bindings);
    for (int group : groups) interpreting.run(plan.groups[static_cast<size_t>(group)]);
    std::vector<HostArray> results;
    for (int result : plan.results) results.push_back(interpreting.load(result));
    return results;
}

}  // namespace tw

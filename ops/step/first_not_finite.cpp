#include "ops/step/first_not_finite.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include <fmt/ranges.h>

#include "ops/step/kept_memory.h"

namespace tw {
namespace {

std::optional<NotFinite> look_at(const PlannedStep& step, size_t index) {
    const StepValue& value = step.plan().values[index];
    if (!is_float(value.type) || value.bytes == 0) return {};
    HostArray array{.type = value.type, .shape = value.shape, .strides = value.strides, .bytes = {}};
    array.bytes.resize(static_cast<size_t>(value.bytes));
    step.memory_of(index).copy_to_host(array.bytes.data(), 0, value.bytes);
    std::vector<int64_t> at(value.shape.size(), 0);
    for (bool more = array.num_elements() > 0; more; more = advance(at, value.shape))
        if (const double element = array.at(at).real; !std::isfinite(element))
            return NotFinite{.value = value.name, .at = at, .element = element};
    return {};
}

std::optional<NotFinite> look_at_written(const PlannedStep& step, size_t group) {
    const StepGroup& own = step.plan().groups[group];
    for (int value : own.writes)
        if (auto found = look_at(step, static_cast<size_t>(value))) {
            found->group = group;
            found->operations = own.operations;
            return found;
        }
    return {};
}

std::optional<NotFinite> run_and_look(const PlannedStep& step) {
    for (size_t v = 0; v < step.plan().values.size(); ++v) {
        const StepValue& value = step.plan().values[v];
        const bool is_given = value.made < 0 && value.place == StepValue::Place::Given;
        if (!is_given) continue;
        if (auto found = look_at(step, v)) return found;
    }
    for (size_t group = 0; group < step.plan().groups.size(); ++group) {
        for (const Launch& launch : step.launches_of(group)) launch.run();
        if (auto found = look_at_written(step, group)) return found;
    }
    return {};
}

/// Of a group of several, whose inputs lie where the step has them.
void find_operation(const PlannedStep& step, NotFinite& found) {
    const StepGroup& group = step.plan().groups[*found.group];
    size_t index = 0;
    if (group.operations.size() > 1) {
        StepPlan plan =
            plan_step(group.declared, group.selection->program.target(), {}, {.join = false, .lay_out = false});
        std::map<std::string, Buffer> given;
        for (const StepValue& value : plan.values) {
            const auto input = std::ranges::find(group.inputs, value.name);
            if (value.made >= 0 || input == group.inputs.end()) continue;
            const auto read = static_cast<size_t>(group.reads[static_cast<size_t>(input - group.inputs.begin())]);
            given[value.name] = step.memory_of(read);
        }
        const std::shared_ptr<Device> device = step.memory_of(static_cast<size_t>(group.writes[0])).device();
        const auto inside = run_and_look(PlannedStep(std::move(plan), device, given));
        if (!inside || !inside->group) return;
        index = static_cast<size_t>(std::ranges::find(group.declared_as, inside->operations.at(0)) -
                                    group.declared_as.begin());
        if (index >= group.operations.size()) return;  // a copy of what one has made
    }
    found.operation = group.operations[index];
    found.scope = group.scopes[index];
}

void run_groups(const PlannedStep& step, size_t end) {
    for (size_t group = 0; group < end; ++group)
        for (const Launch& launch : step.launches_of(group)) launch.run();
}

}  // namespace

std::string NotFinite::text() const {
    const std::string what = fmt::format("{} at [{}] of {}", element, fmt::join(at, ", "), value);
    if (!group) return fmt::format("the step is given {}", what);
    const std::string text =
        fmt::format("group {} ({}) makes {}, of finite inputs", *group, fmt::join(operations, ", "), what);
    if (operation.empty()) return text + "; none of its operations does by itself";
    const std::string of = scope.empty() ? operation : fmt::format("{} ({})", operation, scope);
    return operations.size() > 1 ? text + "; the first to make one is " + of : text + "; it is " + of;
}

std::optional<NotFinite> first_not_finite(const PlannedStep& step) {
    const KeptMemory kept(step);
    auto found = run_and_look(step);
    kept.put_back();
    if (!found || !found->group) return found;
    run_groups(step, *found->group);  // its inputs, which it may have overwritten
    find_operation(step, *found);
    kept.put_back();
    return found;
}

}  // namespace tw

#include "ops/step/first_not_finite.h"

#include <cmath>

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

}  // namespace

std::string NotFinite::text() const {
    const std::string what = fmt::format("{} at [{}] of {}", element, fmt::join(at, ", "), value);
    if (!group) return fmt::format("the step is given {}", what);
    return fmt::format("group {} ({}) makes {}, of finite inputs", *group, fmt::join(operations, ", "), what);
}

std::optional<NotFinite> first_not_finite(const PlannedStep& step) {
    const KeptMemory kept(step);
    const auto found = run_and_look(step);
    kept.put_back();
    return found;
}

}  // namespace tw

#include "ops/step/planned_step.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "ops/step/step_branches.h"
#include "support/error.h"

namespace tw {
namespace {

bool is_given_alone(const StepValue& value) { return value.place == StepValue::Place::Given && value.part_of < 0; }

}  // namespace

PlannedStep::PlannedStep(StepPlan plan, std::shared_ptr<Device> device, const std::map<std::string, Buffer>& given,
                         std::source_location where)
    : plan_(std::move(plan)), device_(std::move(device)) {
    user_check(device_ != nullptr, where,
               "PlannedStep: the device is a null pointer; open one, e.g. open_device(\"cuda\")");
    find_memory(given, where);
    std::vector<Program> programs;
    std::map<const Selection*, size_t> places;
    for (const StepGroup& group : plan_.groups)
        if (!group.memory && places.try_emplace(group.selection.get(), programs.size()).second)
            programs.push_back(group.selection->program);
    prepare(Executable::load(std::move(programs), device_), places);
    order_launches();
    graph_ = device_->graph(launches_, after_);
}

Buffer PlannedStep::in_arena(int64_t offset, int64_t bytes, const std::string& name) const {
    return arena_.view(offset, bytes, name);
}

void PlannedStep::find_memory(const std::map<std::string, Buffer>& given, std::source_location where) {
    for (const auto& [name, buffer] : given) {
        const StepValue& value = plan_.values[static_cast<size_t>(named(name, where))];
        user_check(value.place != StepValue::Place::Replaced, where,
                   "PlannedStep: '{}' takes the place of '{}'; give the memory of that", name,
                   value.replaces < 0 ? "" : plan_.values[static_cast<size_t>(value.replaces)].name);
        user_check(buffer && buffer.bytes() >= value.bytes, where,
                   "PlannedStep: the memory of '{}' has {} bytes, it spans {}", name, buffer ? buffer.bytes() : 0,
                   value.bytes);
    }
    arena_ = device_->allocate(plan_.arena_bytes, "arena of a step");
    for (const StepValue& value : plan_.values) {
        const auto own = given.find(value.name);
        const bool has_own = value.place == StepValue::Place::Given && own != given.end();
        buffers_.push_back(value.place == StepValue::Place::Arena ? in_arena(value.offset, value.bytes, value.name)
                           : has_own                              ? own->second
                           : is_given_alone(value)                ? device_->allocate(value.bytes, value.name)
                                                                  : Buffer());
    }
    for (size_t v = 0; v < buffers_.size(); ++v) {
        const StepValue& value = plan_.values[v];
        if (value.place == StepValue::Place::Replaced) buffers_[v] = buffers_[static_cast<size_t>(value.replaces)];
        if (value.part_of >= 0 && !buffers_[v])
            buffers_[v] = buffers_[static_cast<size_t>(value.part_of)].view(value.offset, value.bytes, value.name);
    }
}

void PlannedStep::prepare(const std::vector<Executable>& executables,
                          const std::map<const Selection*, size_t>& places) {
    for (const StepGroup& group : plan_.groups) {
        first_launches_.push_back(launches_.size());
        if (group.memory) {
            launches_.push_back(memory_launch(group));
            continue;
        }
        const Executable& executable = executables[places.at(group.selection.get())];
        const Tree& tree = executable.program().tree();
        Arguments arguments;
        for (size_t k = 0; k < group.reads.size(); ++k)
            arguments.buffers[group.inputs[k]] = buffers_[static_cast<size_t>(group.reads[k])];
        for (size_t k = 0; k < group.writes.size(); ++k)
            arguments.buffers[tree.outputs[k]->name] = buffers_[static_cast<size_t>(group.writes[k])];
        for (size_t w = 0; w < group.workspaces.size(); ++w) {
            const StepWorkspace& each = group.workspaces[w];
            arguments.workspaces.push_back(
                each.is_counter ? Buffer() : in_arena(each.offset, each.bytes, tree.workspaces[w]->name));
        }
        std::ranges::move(executable.prepare(arguments), std::back_inserter(launches_));
    }
    first_launches_.push_back(launches_.size());
}

Launch PlannedStep::memory_launch(const StepGroup& group) const {
    const auto memory = [&](int value) {
        const auto v = static_cast<size_t>(value);
        return buffers_[v].view(0, plan_.values[v].bytes, plan_.values[v].name);
    };
    const Buffer to = memory(group.writes[0]);
    return group.memory->is_copy ? device_->prepare_copy(to, memory(group.reads[0]))
                                 : device_->prepare_fill(to, group.memory->element);
}

/// By addresses, not by names: values for which the caller has given the same memory conflict, too.
std::vector<StepAccess> PlannedStep::accesses_of_memory(const StepGroup& group) const {
    std::vector<StepAccess> accesses;
    auto add = [&](uint64_t address, int64_t bytes, bool writes) {
        accesses.push_back({0, static_cast<int64_t>(address), static_cast<int64_t>(address) + bytes, writes});
    };
    for (const auto* values : {&group.reads, &group.writes})
        for (int value : *values) {
            const auto v = static_cast<size_t>(value);
            add(buffers_[v].pointer(), plan_.values[v].bytes, values == &group.writes);
        }
    for (const StepWorkspace& workspace : group.workspaces)
        if (!workspace.is_counter)  // whose memory is the group's own
            add(arena_.pointer() + static_cast<uint64_t>(workspace.offset), workspace.bytes, true);
    return accesses;
}

/// Launches of a group run one behind the other. A group without any, if there is one, ends with those that it waits
/// for.
void PlannedStep::order_launches() {
    after_.resize(launches_.size());
    for (size_t n = 1; n < launches_.size(); ++n) after_[n] = {n - 1};
    if (!plan_.branches) return;
    std::vector<StepBranchGroup> groups;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
        StepBranchGroup& group = groups.emplace_back();
        group.accesses = accesses_of_memory(plan_.groups[g]);
        for (const Launch& launch : launches_of(g)) {
            const Dim3& grid = launch.shape().grid;
            group.most_blocks = std::max(group.most_blocks, grid.x * grid.y * grid.z);
        }
    }
    const auto branches = branches_of(groups, device_->properties().multiprocessors);
    std::vector<std::vector<size_t>> last(groups.size());  // launches of each group
    for (size_t g = 0; g < groups.size(); ++g) {
        std::vector<size_t> before;
        for (size_t other : branches[g]) before.insert(before.end(), last[other].begin(), last[other].end());
        const bool has_launches = first_launches_[g] < first_launches_[g + 1];
        last[g] = has_launches ? std::vector{first_launches_[g + 1] - 1} : before;
        if (has_launches) after_[first_launches_[g]] = std::move(before);
    }
}

std::span<const Launch> PlannedStep::launches_of(size_t group) const {
    const size_t first = first_launches_.at(group);
    return std::span(launches_).subspan(first, first_launches_.at(group + 1) - first);
}

int PlannedStep::named(const std::string& name, std::source_location where) const {
    std::vector<std::string> known;
    for (size_t v = 0; v < plan_.values.size(); ++v) {
        const StepValue& value = plan_.values[v];
        const bool is_known = value.place == StepValue::Place::Given || value.is_result;
        if (is_known && value.name == name) return static_cast<int>(v);
        if (is_known) known.push_back(value.name);
    }
    user_error(where, "PlannedStep: '{}' is no input or result; there are [{}]", name, fmt::join(known, ", "));
}

const Buffer& PlannedStep::buffer(const std::string& name, std::source_location where) const {
    return buffers_[static_cast<size_t>(named(name, where))];
}

void PlannedStep::set(const std::string& name, const HostArray& array, std::source_location where) const {
    const StepValue& value = plan_.values[static_cast<size_t>(named(name, where))];
    user_check(array.type == value.type && array.shape == value.shape && array.strides == value.strides, where,
               "PlannedStep: '{}' is {} [{}] with strides [{}], the array is {} [{}] with strides [{}]", name,
               name_of(value.type), fmt::join(value.shape, ", "), fmt::join(value.strides, ", "), name_of(array.type),
               fmt::join(array.shape, ", "), fmt::join(array.strides, ", "));
    buffer(name, where).copy_from_host(array.bytes.data(), 0, value.bytes);
}

HostArray PlannedStep::get(const std::string& name, std::source_location where) const {
    const StepValue& value = plan_.values[static_cast<size_t>(named(name, where))];
    HostArray array{.type = value.type, .shape = value.shape, .strides = value.strides, .bytes = {}};
    array.bytes.resize(static_cast<size_t>(value.bytes));
    buffer(name, where).copy_to_host(array.bytes.data(), 0, value.bytes);
    return array;
}

}  // namespace tw

#include <set>

#include <fmt/ranges.h>

#include "dsl/check_sizes.h"
#include "ops/step/step_plan.h"

namespace tw {
namespace {

std::string bytes_text(int64_t bytes) {
    constexpr double kibi = 1024;
    const double count = static_cast<double>(bytes);
    if (count < 10 * kibi) return fmt::format("{} B", bytes);
    if (count < 10 * kibi * kibi) return fmt::format("{:.0f} KiB", count / kibi);
    return fmt::format("{:.1f} MiB", count / (kibi * kibi));
}

std::string value_text(const StepPlan& plan, int index) {
    const StepValue& value = plan.values[static_cast<size_t>(index)];
    return fmt::format("{} {} [{}]", value.name, name_of(value.type), fmt::join(value.shape, ", "));
}

std::string place_text(const StepPlan& plan, const StepValue& value) {
    switch (value.place) {
        case StepValue::Place::Given: return value.is_result ? "a result" : "given";
        case StepValue::Place::Replaced:
            return fmt::format("in the place of {}", plan.values[static_cast<size_t>(value.replaces)].name);
        case StepValue::Place::Arena: break;
    }
    return fmt::format("arena, byte {}", value.offset);
}

std::string rounded_text(const StepPlan& plan) {
    return plan.rounded.empty() ? "" : fmt::format("rounded for products: {}\n", fmt::join(plan.rounded, ", "));
}

std::string group_text(const StepPlan& plan, size_t index) {
    const StepGroup& group = plan.groups[index];
    std::string text = fmt::format("group {}: {}\n", index, fmt::join(group.operations, ", "));
    std::vector<std::string> kernels, read;
    for (const codegen::KernelText& kernel : group.selection->program.kernels()) kernels.push_back(kernel.name);
    if (group.memory) kernels = {group.memory->is_copy ? "none, a copy of memory" : "none, a fill of memory"};
    for (int value : group.reads) read.push_back(value_text(plan, value));
    text += fmt::format("    kernels  {}, {:.2f} us, {}\n", fmt::join(kernels, ", "), group.seconds * 1e6,
                        group.selection->why);
    text += fmt::format("    reads    {}\n", fmt::join(read, ", "));
    for (int value : group.writes)
        text += fmt::format("    writes   {}: {}\n", value_text(plan, value),
                            place_text(plan, plan.values[static_cast<size_t>(value)]));
    if (!group.after.empty()) text += fmt::format("    after    {}\n", fmt::join(group.after, ", "));
    return text;
}

}  // namespace

double StepPlan::seconds() const {
    double seconds = 0;
    for (const StepGroup& group : groups) seconds += group.seconds;
    return seconds;
}

size_t StepPlan::num_kernels() const {
    size_t count = 0;
    for (const StepGroup& group : groups) count += group.selection->program.kernels().size();
    return count;
}

size_t StepPlan::num_distinct() const {
    std::set<const Selection*> distinct;
    for (const StepGroup& group : groups) distinct.insert(group.selection.get());
    return distinct.size();
}

std::string neighbours_text(const StepPlan& plan) {
    std::string text;
    for (const std::string& what : plan.joined) text += fmt::format("joined: {}\n", what);
    for (const std::string& why : plan.apart) text += fmt::format("not joined: {}\n", why);
    return text;
}

std::string StepPlan::text(bool with_neighbours) const {
    std::string text = fmt::format("{} groups, {} of them distinct; {} kernels, {:.2f} us as predicted\n",
                                   groups.size(), num_distinct(), num_kernels(), seconds() * 1e6);
    for (size_t g = 0; g < groups.size(); ++g) text += group_text(*this, g);
    for (const std::string& what : simplified) text += fmt::format("simplified: {}\n", what);
    for (const std::string& what : laid_out) text += fmt::format("laid out: {}\n", what);
    for (const std::string& why : refused) text += fmt::format("not by its own schedule: {}\n", why);
    text += rounded_text(*this);
    for (const std::string& what : again) text += fmt::format("made again: {}\n", what);
    text += fmt::format("arena: {}, of which at most {} are in use at a time (placed {})\n", bytes_text(arena_bytes),
                        bytes_text(most_alive), placement);
    if (with_neighbours) text += neighbours_text(*this);
    return text;
}

}  // namespace tw

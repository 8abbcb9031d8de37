#include "ops/step/group_schedules.h"

#include <algorithm>

#include "runtime/compile/errors.h"
#include "support/error.h"

namespace tw {

const GroupSchedule& GroupSchedules::of(const GroupDeclaration& group) {
    const auto [entry, is_new] = known_.try_emplace(group.text());
    if (is_new) entry->second = schedule(group);
    return entry->second;
}

namespace {

Selection selection_of_part(const GroupDeclaration& group, const Target& target) {
    const OwnSchedule& own = *group.own_schedule;
    const Schedule schedule = own.schedule(group.operands, target);
    const std::vector<Tensor>&declared = group.declared.outputs, &made = schedule.outputs();
    const bool is_alike = std::ranges::equal(declared, made, [](const Tensor& a, const Tensor& b) {
        return a.type() == b.type() && std::ranges::equal(a.shape(), b.shape(), equal);
    });
    if (!is_alike)
        throw_error(Error, "the schedule of '{}' has outputs of other shapes or types than it declares", own.name);
    return {.program = build(schedule),
            .origin = Provenance::Own,
            .name = own.name,
            .why = "its own schedule",
            .passed_over = {}};
}

}  // namespace

GroupSchedule GroupSchedules::schedule(const GroupDeclaration& group) const try {
    auto selection =
        std::make_shared<Selection>(group.own_schedule ? selection_of_part(group, target_)
                                                       : registry_.select(group.declared, target_, preferences_));
    const double seconds = selection->program.predicted().seconds;
    return {std::move(selection), seconds};
} catch (const StickyError&) {
    throw;  // of a tuner: nothing runs on the device any more
} catch (const Error& problem) {
    return {.selection = nullptr, .problem = problem.what()};
}

}  // namespace tw

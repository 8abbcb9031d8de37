#include "ops/step/group_schedules.h"

#include "runtime/compile/errors.h"
#include "support/error.h"

namespace tw {

const GroupSchedule& GroupSchedules::of(const GroupDeclaration& group) {
    const auto [entry, is_new] = known_.try_emplace(group.text());
    if (is_new) entry->second = schedule(group);
    return entry->second;
}

GroupSchedule GroupSchedules::schedule(const GroupDeclaration& group) const try {
    auto selection = std::make_shared<Selection>(registry_.select(group.declared, target_, preferences_));
    const double seconds = selection->program.predicted().seconds;
    return {std::move(selection), seconds};
} catch (const StickyError&) {
    throw;  // of a tuner: nothing runs on the device any more
} catch (const Error& problem) {
    return {.selection = nullptr, .problem = problem.what()};
}

}  // namespace tw

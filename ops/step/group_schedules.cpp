#include "ops/step/group_schedules.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "dsl/check_sizes.h"
#include "runtime/compile/errors.h"
#include "schedules/declaration_text.h"
#include "support/error.h"

namespace tw {

const GroupSchedule& GroupSchedules::of(const GroupDeclaration& group) {
    const auto [entry, is_new] = known_.try_emplace(group.text());
    if (is_new) entry->second = schedule(group);
    return entry->second;
}

namespace {

std::string text_of(const std::vector<Tensor>& tensors) {
    std::vector<std::string> each;
    for (const Tensor& tensor : tensors)
        each.push_back(fmt::format("{} {} {}", tensor.name(), name_of(tensor.type()), shape_text(tensor.shape())));
    return fmt::format("{}", fmt::join(each, ", "));
}

}  // namespace

Selection selection_of_part(const GroupDeclaration& group, const Target& target) {
    const OwnSchedule& own = *group.own_schedule;
    const Schedule schedule = own.schedule(group.operands, target);
    const std::vector<Tensor>&declared = group.declared.outputs, &made = schedule.outputs();
    const bool is_alike = std::ranges::equal(declared, made, [](const Tensor& a, const Tensor& b) {
        return a.type() == b.type() && std::ranges::equal(a.shape(), b.shape(), equal);
    });
    user_check(is_alike, own.where, "the schedule of '{}' is of {}, where it declares {}", own.name, text_of(made),
               text_of(declared));
    for (const auto& operation : operations_of(made))
        user_check(
            !operation->is_input() ||
                std::ranges::any_of(group.inputs, [&](const Tensor& input) { return input.operation() == operation; }),
            own.where, "the schedule of '{}' reads '{}', which is none of the operands that it is given", own.name,
            operation->name);
    user_check(own.schedules == ScheduleOf::Equivalent ||
                   schedules::declaration_text(declared) == schedules::declaration_text(made),
               own.where,
               "the schedule of '{}' is of another declaration than its own; schedule what it declares of these "
               "operands, or, if that is the same computation, say ScheduleOf::Equivalent",
               own.name);
    return {.program = build(schedule),
            .origin = Provenance::Own,
            .name = own.name,
            .why = "its own schedule",
            .passed_over = {}};
}

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
} catch (const std::exception& problem) {
    if (!group.own_schedule) throw;  // whatever a user's function throws refuses
    return {.selection = nullptr, .problem = problem.what()};
}

}  // namespace tw

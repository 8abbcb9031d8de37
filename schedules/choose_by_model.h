// Where the model of time expects other choices than the rule's to be faster.
#pragma once
#include <functional>
#include <optional>

#include "dsl/schedule.h"
#include "schedules/candidates.h"

namespace tw::schedules {

/// Picks of the rule's choices that should take less time than `by_rule`, its schedule, by a share that is beyond the
/// model's errors; nothing where there are none, or where the rule's should be about as fast as memory allows: then
/// nothing is searched. Nor is it where tensor cores multiply, whose tilings have a model of their own, as tiles of
/// other products have, or where the text is long, or does not lower. A dozen candidates (neighbours_of_rule) at most
/// are lowered.
std::optional<Picks> faster_by_model(const std::function<Schedule()>& rule, const Schedule& by_rule);

}  // namespace tw::schedules

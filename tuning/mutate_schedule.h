// Random changes of a schedule: other sizes, orders, copies and places, of whatever it computes. Each is made by steps,
// which refuse what is illegal, so that what comes out computes the same, but for the order of sums.
#pragma once
#include <optional>
#include <string>

#include "dsl/replay_changed.h"
#include "support/random.h"

namespace tw::tuning {

/// The schedule with one change, or nothing where the kind that was drawn finds nothing to change. `change` tells the
/// kind ("size of a split"), before steps are taken. Throws Error where a step is refused. What rounds elements, where
/// results lie in memory, and what a result's memory has beside it stay as they are.
std::optional<Schedule> mutate(const ChangeableTrace& trace, Random& random, std::string& change);

}  // namespace tw::tuning

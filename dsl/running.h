// Scans that run along a loop: reductions whose terms are those of a neighbour and one more. Inside of dsl/ only.
#pragma once
#include <optional>

#include "dsl/schedule_state.h"

namespace tw {

/// The reduction of select(term <= i, x(term), identity), or of terms from i on, as one that is as long as the element
/// says. Nothing if its terms have no such condition.
std::optional<StageDefinition> with_terms_by_length(const StageDefinition& definition);

/// The value of a loop in terms of its descendants' variables, and of the variable of `known`, if that is one of them.
Expr loop_value_over(const Schedule::State& state, int loop, int known);

/// Throws Error if a scan no longer is one along its loop, or its loops break the rules of running().
void check_scan(const Schedule::State& state, int stage, std::source_location where);

}  // namespace tw

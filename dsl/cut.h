// Cut loops: one loop of a schedule, run in segments one after another.
#pragma once
#include <string>
#include <vector>

#include "dsl/schedule_state.h"

namespace tw {

class Edit;

/// The tree with a loop for each segment of a cut loop. Throws Error if a position depends on a loop that does not
/// stand around the cut one.
Tree cut_loops(const Schedule::State& state, Tree tree, std::source_location where);

/// Between which iterations of `loop` the comparisons in masks and selects of `stage` hold in the whole iteration: the
/// first of them, if not 0, and the one behind the last, if not the extent.
std::vector<Expr> where_conditions_hold(const Schedule::State& state, int loop, int stage, std::source_location where);

/// The iterations of `loop` in which each of those comparisons holds somewhere.
Kept where_conditions_hold_somewhere(const Schedule::State& state, int loop, int stage, std::source_location where);

/// A position as a trace saves it: in Polish notation, "/ + n:m 1 2" for (m + 1) / 2, "l3" being the iteration of a
/// loop. Empty if it is made of anything else than numbers, named sizes and loops with + - * / % min max.
std::string saved_position(const Schedule::State& state, const Expr& position);
/// A position as C++: s.index(bi) is the iteration of a loop.
std::string position_as_cpp(Edit& edit, const Expr& position);

}  // namespace tw

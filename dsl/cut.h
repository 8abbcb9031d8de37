// Cut loops: one loop of a schedule, run in segments one after another.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dsl/schedule_state.h"

namespace tw {

class Edit;

/// Which iterations a loop runs: from..end-1, or the other way, in segments.
struct Segments {
    Expr from, end;
    bool reversed = false;
    std::vector<Expr> cuts = {};  ///< where segments begin, counted from the first iteration that runs; not in order,
                                  ///< or outside, where segments are empty

    Expr extent() const;
    /// The one that runs as the number-th, from 0.
    Expr iteration(const Expr& number) const;
};
/// Of a loop of this extent, as it was cut and skips, that stands in loops of the variables `around`. Throws Error if a
/// position depends on another one.
Segments segments_of(const Schedule::State& state, int loop, const Expr& extent, const std::vector<Expr>& around,
                     std::source_location where);
/// A loop that runs some of the iterations of `whole`: `body` gives what stands in each, by its number from 0.
Stmt part_of_loop(const For& whole, const Expr& extent, const std::function<Stmt(const Expr& number)>& body);
/// Registers that live in the statement are its own, not those of other parts of the loop.
Stmt with_own_registers(const Stmt& stmt);
/// The one that is not greater, or not less, if that is known.
Expr smaller(const Expr& a, const Expr& b);
Expr larger(const Expr& a, const Expr& b);
/// The statement of another iteration.
Stmt in_iteration(const Stmt& stmt, const Expr& variable, const Expr& iteration);

/// Of the comparisons of indices in selects' conditions: what is not negative where one holds. Those that data decide
/// are left out.
std::vector<Expr> slacks_of_selects(const std::vector<Expr>& exprs);

/// The tree with a loop for each segment of a cut loop. Throws Error as segments_of does.
Tree cut_loops(const Schedule::State& state, Tree tree, std::source_location where);

/// Between which iterations of `loop` the comparisons in masks and selects of `stage` hold in the whole iteration: the
/// first of them, if not 0, and the one behind the last, if not the extent.
std::vector<Expr> where_conditions_hold(const Schedule::State& state, int loop, int stage, std::source_location where);

/// Whether any of those comparisons tells iterations apart.
bool conditions_have_limits(const Schedule::State& state, int loop, int stage, std::source_location where);

/// The iterations of `loop` in which each of those comparisons holds somewhere.
Kept where_conditions_hold_somewhere(const Schedule::State& state, int loop, int stage, std::source_location where);

/// A position as a trace saves it: in Polish notation, "/ + n:m 1 2" for (m + 1) / 2, "l3" being the iteration of a
/// loop. Empty if it is made of anything else than numbers, named sizes and loops with + - * / % min max.
std::string saved_position(const Schedule::State& state, const Expr& position);
/// A position as C++: s.index(bi) is the iteration of a loop.
std::string position_as_cpp(Edit& edit, const Expr& position);

}  // namespace tw

// Sums whose terms are 0 where the maximum or minimum that they are relative to is empty. Inside of dsl/.
#pragma once
#include "dsl/stream.h"

namespace tw {

/// The expression with `by` for each part that equals `part`.
Expr replaced(const Expr& root, const Expr& part, const Expr& by);

/// Whether terms of a sum are 0 where those that the running value chooses from are all `empty`: then a sum that has
/// met no others has nothing to lose. `term`: what it chooses from, at its own reduce axes; undefined if it is no
/// choice. `written`: the sum's updates with stages between written out. The sum may take the terms of an iteration in
/// an order of its own.
bool absorbs(const Schedule::State& state, const Chain& chain, const Expr& term, const StageDefinition& running,
             const StageDefinition& sum, const std::vector<Expr>& written, const Expr& empty,
             std::source_location where);

}  // namespace tw

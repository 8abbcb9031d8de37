// Reductions in parts: each iteration of a reduce loop reduces its own terms, then the parts are combined. Inside of
// dsl/.
#pragma once
#include <functional>
#include <string>

#include "dsl/edit.h"

namespace tw {

/// Throws Error unless iterations of the loop can be parts of the reduction. `call` is the step, for messages.
void check_parts(const Edit& edit, int whole, int along, const std::string& call);

/// The reduction `stage` over the terms of one iteration of the loop, which is a reduce loop of `owner`, a reduction
/// over the same terms. Its results are its accumulators, their first dimension is the loop.
StageDefinition partial_definition(const Schedule::State& state, int stage, int owner, int along);

/// Adds the parts as a stage, which takes over the loops of the stage that they are of. Returns its index.
int add_parts(Schedule::State& state, int whole, int along, StageDefinition parts, int step);

/// What is left of a reduction: part(component, index of the loop), combined in the loop's order.
void combine_parts(StageDefinition& whole, const LoopRecord& loop,
                   const std::function<Expr(size_t component, const Expr& index)>& part);

/// An axis as long as the loop.
Expr axis_like(const LoopRecord& loop);

// Where elements decide how many terms they have (uneven_parts.cpp).
/// The loop, as long as the element with the most parts needs it.
LoopRecord loop_of_parts(const Schedule::State& state, int along);
/// How many iterations a reduce loop of `owner` has in a part of `stage`, which reduces over the same terms.
Expr length_in_part(const Schedule::State& state, int stage, int owner, int along, int loop, const Expr& part);
/// Whether lengths in parts say which terms the split leaves out.
bool is_uneven_in_parts(const Schedule::State& state, int owner, int along, const Relation& split);
/// Throws Error unless a number of parts is enough for all elements, and each one's length is known.
void check_uneven_parts(const Schedule::State& state, int owner, int along, const std::string& call,
                        std::source_location where);

}  // namespace tw

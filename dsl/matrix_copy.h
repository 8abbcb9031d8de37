// Copies that lie as the loops of their reader run, not as their tensor does.
#pragma once
#include <memory>

#include "dsl/loop_axes.h"

namespace tw {

/// What a reduction combines; without one, what the elements are.
const std::vector<Expr>& terms_of(const StageDefinition& reader);

/// The one expression of an output of `source` that the terms of `reader` read: an element, or the choice between an
/// element and a number that indices make. Undefined if they read none; throws Error if they read several.
Expr element_read(const StageDefinition& reader, const std::shared_ptr<const Operation>& source, int output,
                  std::source_location where);

/// Of a sum of products under a condition of indices: the condition moves to the factor that reads `source`, if the
/// other one's elements exist without it. Whether it did.
bool move_guard(StageDefinition& reduction, const std::shared_ptr<const Operation>& source, int output);

/// Where the choice between a converted element of `source` and zero is made, it is made before the conversion.
void guard_before_casts(StageDefinition& reduction, const std::shared_ptr<const Operation>& source, int output);

/// A copy of such an element over those of the axes that it depends on, in their order. Where the axes leave the
/// tensor, which only what is masked reads, it holds zeros.
StageDefinition matrix_copy(const LoopAxes& axes, const Expr& element, const std::string& name);

/// The element of the copy that stands for the expression which it is of, over the declared axes of the reader.
Expr read_of_matrix(const StageDefinition& copy, const LoopAxes& axes);

}  // namespace tw

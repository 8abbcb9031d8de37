// Reductions of one pass that follow another: what they hold of it, from before the step and from behind it, and how
// they make up for the difference. Each place altered.
#pragma once
#include <vector>

#include "verify/mutate_signals.h"

namespace tw::fuzz {

/// A value as it was before a step, and as it is behind it.
struct RunningValue {
    codegen::Buffer before, now;
};
/// Of all streams of a kernel.
std::vector<RunningValue> running_values(const codegen::ThreadKernel& kernel);

/// The old value instead of the new one, and the new one instead of the old.
std::vector<AlteredStatement> altered_streams(const codegen::ThreadStmt& stmt, const std::vector<RunningValue>& values);

/// Whether a store multiplies what it overwrites, as a sum does whose terms are weighed otherwise from now on.
bool is_correction(const codegen::ThreadStore& store);
/// Whether a choice puts another value in the place of one that is not finite, which stands for no term.
bool is_guard_of_none(const Select& choice);

}  // namespace tw::fuzz

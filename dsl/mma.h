// What mma asks of a stage, by the roles of its loops.
#pragma once
#include <source_location>
#include <string>
#include <vector>

#include "dsl/schedule_state.h"

namespace tw {

/// The atom for the stage's product of operands over the loops m, n and k of its record. Throws Error at `where`,
/// saying what does not fit: the reduction, the factors, their types, the loops' order, levels and extents, the target.
const Atom& matching_atom(const Schedule::State& state, int stage, std::source_location where);
/// What is legal of the stage's mma, but slow, for explain(): tiles larger than what they tile, warps that repeat
/// others'. Nothing of a stage without mma.
std::vector<std::string> notes_of_unit(const Schedule::State& state, int stage);

}  // namespace tw

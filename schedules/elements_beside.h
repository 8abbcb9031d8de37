// Outputs whose elements are made beside another's, in one kernel, of what both read.
#pragma once
#include <vector>

#include "schedules/element_reads.h"

namespace tw::schedules {

/// Outputs that reduce nothing, as many along each axis as `stage`, an output like them, with loops as declared, which
/// read a large part of what it reads, or its elements: one kernel can make them all, since none waits for another
/// kernel that reads one of them.
std::vector<Stage> outputs_beside(const Schedule& s, Stage stage, const Elements& elements);

/// What an element of each of the stages reads and stores together.
Elements together(const Schedule& s, const Elements& elements, const std::vector<Stage>& beside);

/// Whether the stage stands in a kernel with others.
bool stands_beside(const Schedule& s, Stage stage);

}  // namespace tw::schedules

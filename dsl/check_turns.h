// Warpgroups take turns at parts of an iteration, not at loops whose copies they share. Inside of dsl/ only.
#pragma once
#include <source_location>

#include "dsl/tree.h"

namespace tw {

/// Refuses an exclusive section of the kernel that holds a pipelined loop from its first iteration to its last: who has
/// its turn would wait for copies that come once the others, whose turn is later, have read those before them.
void check_turns(const Nest& nest, std::source_location where);

}  // namespace tw

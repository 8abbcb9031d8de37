#pragma once
#include "dsl/tree.h"

namespace tw::codegen {

/// Loops of one iteration become their bodies; loops of none vanish.
///
///     for i < 1             c[0] = a[0]
///       c[i] = a[i]
Nest remove_unit_loops(const Nest& nest);

}  // namespace tw::codegen

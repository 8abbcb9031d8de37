#pragma once
#include "dsl/tree.h"

namespace tw::codegen {

/// Loops that no schedule step bound end where every leaf in them is masked from there on.
///
///     for i < 8                     for i < 5
///       if i < 5: c[i] = a[i]         c[i] = a[i]
Nest shorten_loops(const Nest& nest);

}  // namespace tw::codegen

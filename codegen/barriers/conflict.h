// Whether two accesses of memory that a block's threads share may meet: access one element from different threads.
#pragma once
#include "codegen/barriers/placed_access.h"

namespace tw::codegen {

/// `earlier` and `later` stand in `common` loops together; unless SameIteration, the innermost of these carries.
Conflict conflict_of(const PlacedAccess& earlier, const PlacedAccess& later, size_t common, Distance distance,
                     const ThreadKernel& kernel);

}  // namespace tw::codegen

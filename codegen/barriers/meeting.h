// Whether two accesses of memory that a block's threads share may meet: touch one element from different threads.
#pragma once
#include "codegen/barriers/placed_touch.h"

namespace tw::codegen {

/// `earlier` and `later` stand in `common` loops together; unless SameIteration, the innermost of these carries.
Meeting meeting_of(const PlacedTouch& earlier, const PlacedTouch& later, size_t common, Distance distance,
                   const ThreadKernel& kernel);

}  // namespace tw::codegen

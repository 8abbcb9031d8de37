// Where in memory the lanes of a warp have an element.
#pragma once
#include <vector>

#include "codegen/access/access.h"
#include "codegen/cost/lane_values.h"

namespace tw::codegen {

/// In bytes of the buffer, of each lane that is active, if that is known.
std::optional<std::vector<int64_t>> starts_of(const Access& place, const LaneScope& scope,
                                              const std::array<bool, warp_lanes>& active);

}  // namespace tw::codegen

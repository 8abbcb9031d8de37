// How many tiles cover an extent.
#pragma once
#include <cstdint>

namespace tw::schedules {

inline int64_t divided(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }  ///< rounded up
inline int64_t rounded_up(int64_t extent, int64_t tile) { return divided(extent, tile) * tile; }

}  // namespace tw::schedules

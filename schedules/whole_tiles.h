// How many tiles cover an extent, and what units of tensor cores and copies take at once.
#pragma once
#include <algorithm>
#include <cstdint>

namespace tw::schedules {

inline int64_t divided(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }  ///< rounded up
inline int64_t rounded_up(int64_t extent, int64_t tile) { return divided(extent, tile) * tile; }

/// Of a count of blocks, within a limit; 1 of none.
inline int64_t largest_divisor(int64_t count, int64_t limit) {
    for (int64_t divisor = std::min(count, limit); divisor > 1; --divisor)
        if (count % divisor == 0) return divisor;
    return 1;
}

inline double as_double(int64_t count) { return static_cast<double>(count); }

constexpr int64_t rows_of_unit = 64;  ///< of a wgmma
constexpr int64_t piece = 8;          ///< elements of 2 bytes together as 16, of the widest access

}  // namespace tw::schedules

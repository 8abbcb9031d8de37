// Which kernels start while the one before them ends, and let the next one in while they run: programmatic dependent
// launch.
#pragma once
#include <cstdint>

namespace tw::codegen {

/// Some six blocks on each multiprocessor of a large GPU: fewer would be placed unevenly among those that still run.
inline constexpr int64_t fewest_blocks_to_overlap = 768;
/// Half of the shared memory that Hopper has: blocks with more leave no room for a second one on a multiprocessor, which
/// places them evenly.
inline constexpr int64_t shared_bytes_of_lone_blocks = 228 * 1024 / 2;

inline bool overlaps_neighbours(int64_t blocks, int64_t shared_bytes) {
    return blocks >= fewest_blocks_to_overlap || shared_bytes > shared_bytes_of_lone_blocks;
}

}  // namespace tw::codegen

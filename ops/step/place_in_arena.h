// Where arrays that live for a part of a step lie in one piece of memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tw {

/// Bytes that are needed from the beginning of one group to the end of another.
struct ArenaRequest {
    int64_t bytes;
    int from, to;  ///< groups, in the order in which they run; both included
};
struct ArenaPlacement {
    std::vector<int64_t> offsets;  ///< one for each request, multiples of `alignment`
    int64_t bytes = 0;             ///< of all
    int64_t most_alive = 0;        ///< at a time: no placement needs less
    std::string method;            ///< "by size", "in order"
};

/// Those that live at the same time lie apart. Of two placements, largest first (Pisarchyk and Lee 2020, greedy by
/// size) and in the order in which they begin, each at the first place where it fits, the smaller one. Requests of no
/// bytes lie at 0.
ArenaPlacement place_in_arena(const std::vector<ArenaRequest>& requests, int64_t alignment = 256);

}  // namespace tw

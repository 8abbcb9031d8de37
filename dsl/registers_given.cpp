#include "dsl/registers_given.h"

#include <algorithm>

namespace tw {

int64_t registers_given(const Target& target, int64_t threads, int64_t blocks) {
    constexpr int64_t schedulers = 4, taken_together = 8;  // registers of a thread
    const int64_t lanes = target.warp_size, warps = (threads + lanes - 1) / lanes * blocks,
                  of_scheduler = std::max<int64_t>((warps + schedulers - 1) / schedulers, 1);
    const int64_t given = target.registers / schedulers / (of_scheduler * lanes) / taken_together * taken_together;
    return std::min<int64_t>(given, target.max_registers_per_thread);
}

}  // namespace tw

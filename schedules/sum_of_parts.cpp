#include "schedules/sum_of_parts.h"

#include "schedules/whole_tiles.h"

namespace tw::schedules {

void schedule_sum_of_parts(Schedule& s, const Tensor& c, int64_t parts) {
    constexpr int64_t at_once = 8;
    const bool few = parts <= at_once;
    auto [block, inside] = s.split(s.fuse(s.data_loops(c), "all"), few ? 128 : 32, Tail::Mask, {"block", "t"});
    if (few) {
        s.unroll(s.reduce(c));
    } else {
        auto [turn, warp_of] = s.split(s.reduce(c), at_once, Tail::Mask, {"turn", "share"});
        s.order({block, warp_of, inside, turn});
        s.bind(warp_of, thread);
    }
    s.bind(block, grid.x);
    s.bind(inside, thread);
}

Stage split_sum(Schedule& s, const Tensor& c, int64_t length) {
    const int64_t k = require_constant(s.extent(s.reduce(c)));
    Stage parts = s.rfactor(c, s.split(s.reduce(c), length, Tail::Mask, {"split_k", "k_in_split"})[0]);
    schedule_sum_of_parts(s, c, divided(k, length));
    return parts;
}

}  // namespace tw::schedules

#include "schedules/transposed.h"
#include "support/error.h"

#include <algorithm>

namespace tw::schedules {

void schedule_transposed(Schedule& s, const Tensor& y, const Tensor& x, std::source_location where) {
    CalledFrom caller(where);
    const int64_t neighbours = 16 / bytes_of(y.type()), side = 64, threads = 256, lanes = side / neighbours;
    auto [i, j] = s.loops<2>(y);
    auto [bi, ti] = s.split(i, side, Tail::Mask, {"block_i", "tile_i"});
    auto [bj, tj] = s.split(j, side, Tail::Mask, {"block_j", "tile_j"});
    auto [step, row] = s.split(ti, std::min(threads / lanes, side), {"step", "row"});
    auto [lane_of, element] = s.split(tj, neighbours, {"t", "element"});
    s.order({bi, bj, row, lane_of, step, element});
    Loop block = s.fuse(bi, bj, "block");  // grid.y ends at 65535
    s.bind(block, grid.x);
    s.bind(row, thread);
    s.bind(lane_of, thread);
    s.bind(element, tw::vector);
    s.stage(y, x, Memory::Shared, block);
}

}  // namespace tw::schedules

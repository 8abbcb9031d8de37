#include "schedules/scattered.h"
#include "schedules/require_sizes.h"
#include "support/error.h"

#include <algorithm>

namespace tw::schedules {

void schedule_fill(Schedule& s, const StageRef& stage, std::source_location where) {
    CalledFrom caller(where);
    std::vector<Loop> loops = s.data_loops(stage);
    if (loops.empty()) return;  // a scalar: one thread
    auto [block, inside] = s.split(s.fuse(loops, "all"), 1024, Tail::Mask, {"block", "in_block"});
    auto [lane_of, element] = s.split(inside, 4, {"t", "element"});
    s.bind(block, grid.x);
    s.bind(lane_of, thread);
    s.bind(element, tw::vector);
}

void schedule_scattered_rows(Schedule& s, const Tensor& y, int64_t width, int64_t neighbours, Combine combine,
                             std::source_location where) {
    CalledFrom caller(where);
    require_sizes("scattered rows", {{"width", width, 0}, {"neighbours", neighbours}}, where);
    Stage terms = s.scatter(y, combine);
    if (combine == Combine::Atomic) schedule_fill(s, y);
    int64_t vectors = (width + neighbours - 1) / neighbours;
    int64_t threads = std::clamp<int64_t>((vectors + 31) / 32 * 32, 32, 256);
    auto [row, column] = s.loops<2>(terms);
    auto [tile, inside] = s.split(column, threads * neighbours, Tail::Mask, {"tile", "in_tile"});
    auto [lane, element] = s.split(inside, neighbours, {"t", "element"});
    if (combine == Combine::Atomic)
        s.order({row, tile, lane, element});
    else
        s.order({row, tile, lane, s.reduce(y), element});
    s.bind(row, grid.x);
    s.bind(tile, grid.y);
    s.bind(lane, thread);
    if (neighbours > 1) s.bind(element, tw::vector);
}

}  // namespace tw::schedules

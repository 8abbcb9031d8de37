#include "schedules/elementwise.h"
#include "schedules/producers.h"
#include "schedules/require_sizes.h"
#include "support/error.h"

namespace tw::schedules {

void schedule_elementwise(Schedule& s, const Tensor& y, int64_t threads, int64_t per_thread, int64_t vectors,
                          std::source_location where) {
    CalledFrom caller(where);
    require_sizes("elementwise", {{"threads", threads}, {"per_thread", per_thread}, {"vectors", vectors}}, where);
    Stage last = s[y];
    for (Stage stage : producers_of(s, last))
        if (stage.id != last.id) s.inline_stage(stage);
    std::vector<Loop> loops = s.data_loops(y);
    if (loops.empty()) return;  // a scalar: one thread
    auto [block, inside] =
        s.split(s.fuse(loops, "all"), threads * per_thread * vectors, Tail::Mask, {"block", "in_block"});
    auto [vector_of, part] = s.split(inside, threads * per_thread, {"step", "in_step"});
    auto [lane_of, element] = s.split(part, per_thread, {"t", "element"});
    s.order({block, lane_of, vector_of, element});
    s.bind(block, grid.x);
    s.bind(lane_of, thread);
    s.unroll(vector_of);
    if (per_thread > 1) s.bind(element, tw::vector);
}

void schedule_dense_copy(Schedule& s, const Tensor& copy, std::source_location where) {
    CalledFrom caller(where);
    const int64_t piece = 16 / bytes_of(copy.type());
    auto [block, lane_of, element] =
        s.split(s.fuse(s.data_loops(copy), "all"), {256 * piece, piece}, Tail::Mask, {"block", "t", "element"});
    s.bind(block, grid.x);
    s.bind(lane_of, thread);
    s.bind(element, tw::vector);
}

void schedule_each_element(Schedule& s, const StageRef& y, int64_t threads, std::source_location where) {
    CalledFrom caller(where);
    const std::vector<Loop> loops = s.data_loops(y);
    if (loops.empty()) return;  // one thread has all there is
    auto [block, element] = s.split(s.fuse(loops, "all"), threads, Tail::Mask, {"block", "element"});
    s.bind(block, grid.x);
    s.bind(element, thread);
}

}  // namespace tw::schedules

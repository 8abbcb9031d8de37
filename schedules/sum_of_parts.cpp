#include "schedules/sum_of_parts.h"

#include <numeric>
#include <vector>

#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t most_of_thread = 4;  // f32 that 16 bytes hold

/// Elements that each thread adds: blocks that begin took longer than the parts of one element a thread did. Where
/// that leaves too few threads, fewer.
int64_t elements_of_thread(int64_t elements, int64_t multiprocessors) {
    constexpr int64_t threads_wanted = 128;  // of a multiprocessor
    int64_t of_thread = most_of_thread;
    while (of_thread > 1 && elements / of_thread < threads_wanted * multiprocessors) of_thread /= 2;
    return of_thread;
}

/// Of extents that are named sizes, as if they were one.
int64_t elements_of(const Schedule& s, const Tensor& c) {
    int64_t elements = 1;
    for (Loop loop : s.data_loops(c)) elements *= as_constant(s.extent(loop)).value_or(1);
    return elements;
}

}  // namespace

void schedule_sum_of_parts(Schedule& s, const Tensor& c, int64_t parts) {
    constexpr int64_t at_once = 8, threads = 256;
    const bool few = parts <= at_once;
    const int64_t elements = elements_of(s, c), of_thread = elements_of_thread(elements, s.target().multiprocessors),
                  together = std::gcd(elements, of_thread),  // each part begins at a multiple of so many
        of_step = (few ? threads : threads / at_once) * together;
    auto [block, in_block] =
        s.split(s.fuse(s.data_loops(c), "all"), of_step * of_thread / together, Tail::Mask, {"block", "in_block"});
    std::vector<Loop> own;  // of a thread
    if (of_thread > together) {
        const auto [step, in_step] = s.split(in_block, of_step, {"step", "in_step"});
        s.unroll(step);
        own.push_back(step);
        in_block = in_step;
    }
    if (together > 1) {
        const auto [t, element] = s.split(in_block, together, {"t", "element"});
        own.push_back(element);
        in_block = t;
    }
    std::vector<Loop> order{block, in_block, s.reduce(c)};
    if (few) {
        s.unroll(s.reduce(c));
    } else {
        const auto [turn, warp_of] = s.split(s.reduce(c), at_once, Tail::Mask, {"turn", "share"});
        s.bind(warp_of, thread);
        order = {block, warp_of, in_block, turn};
    }
    order.insert(order.end(), own.begin(), own.end());
    s.order(order);
    s.bind(block, grid.x);
    s.bind(in_block, thread);
    if (together > 1) s.bind(own.back(), vector);
}

Stage split_sum(Schedule& s, const Tensor& c, int64_t length) {
    const int64_t k = require_constant(s.extent(s.reduce(c)));
    Stage parts = s.rfactor(c, s.split(s.reduce(c), length, Tail::Mask, {"split_k", "k_in_split"})[0]);
    schedule_sum_of_parts(s, c, divided(k, length));
    return parts;
}

}  // namespace tw::schedules

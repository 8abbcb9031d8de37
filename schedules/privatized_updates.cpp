#include "schedules/privatized_updates.h"

#include <algorithm>
#include <vector>

#include "dsl/simplify.h"
#include "schedules/scattered.h"
#include "schedules/take_steps.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t threads = 256, neighbours = 4, blocks_of_parts = 528;  // four for each multiprocessor of a large GPU
constexpr int64_t most_elements = 4096;                                  // of a block: 32 KB of i64
constexpr int64_t least_terms = 1 << 15;                                 // below, other ways take no longer
constexpr int64_t least_of_an_element = 16;                              // terms

int64_t points_of(const Schedule& s, const std::vector<Loop>& loops) {
    int64_t points = 1;
    for (const Loop& loop : loops) points = std::min(points, most_elements) * as_constant(s.extent(loop)).value_or(0);
    return points;
}

std::vector<Loop> reduce_loops(const Schedule& s, Stage stage) {
    std::vector<Loop> loops = s.all_loops(stage);
    for (const Loop& data : s.data_loops(stage)) std::erase_if(loops, [&](const Loop& l) { return l.id == data.id; });
    return loops;
}

/// 0 where their number is not known.
int64_t terms_of(const Schedule& s, Stage stage) {
    int64_t terms = 1;
    for (const Loop& loop : reduce_loops(s, stage)) terms *= as_constant(s.extent(loop)).value_or(0);
    return terms;
}

Loop as_one(Schedule& s, const std::vector<Loop>& loops, const std::string& name) {
    s.order(loops);
    return loops.size() > 1 ? s.fuse(loops, name) : loops[0];
}

void spread(Schedule& s, Loop elements) { s.bind(s.split(elements, threads, Tail::Mask, {"round", "t"})[1], thread); }

void schedule_parts(Schedule& s, Stage stage, int64_t terms) {
    const int64_t step = threads * neighbours, chunk_length = rounded_up(divided(terms, blocks_of_parts), step);
    const Loop term = as_one(s, reduce_loops(s, stage), "term");
    const Stage parts = s.rfactor(stage, s.split(term, chunk_length, Tail::Mask, {"chunk", "in_chunk"})[0]);
    const Stage adds = s.rfactor(stage, s.reduce(stage), Combine::Atomic);
    const Stage updates = s.scatter(parts, Combine::Atomic);
    std::vector<Loop> elements = s.data_loops(adds);
    const Loop chunk = elements[0];
    s.order(elements);
    s.bind(chunk, grid.x);
    s.at(parts, chunk);
    s.set_memory(parts, Memory::Shared);
    spread(s, as_one(s, {elements.begin() + 1, elements.end()}, "element"));
    const std::vector<Loop> filled = s.data_loops(parts);
    spread(s, as_one(s, {filled.begin() + 1, filled.end()}, "element"));
    std::vector<Loop> own = s.data_loops(updates);
    std::rotate(own.begin(), own.begin() + 1, own.begin() + 2);  // the chunk, of which there is one here, in front
    s.order(own);
    const Loop all = as_one(s, {own.begin() + 1, own.end()}, "term");
    const auto [round, in_round] = s.split(all, step, Tail::Mask, {"step", "in_step"});
    const auto [lane_of, neighbour] = s.split(in_round, neighbours, {"t", "neighbour"});
    s.bind(lane_of, thread);
    s.unroll(neighbour);
    schedule_fill(s, stage);
}

}  // namespace

bool may_be_privatized(const Schedule& s, Stage stage) {
    const std::vector<Loop> data = s.data_loops(stage);
    if (data.empty()) return false;
    const int64_t terms = terms_of(s, stage), elements = points_of(s, data);
    return terms >= least_terms && elements > 0 && elements <= most_elements && terms >= elements * least_of_an_element;
}

bool schedule_privatized(Schedule& s, Stage stage) {
    if (!may_be_privatized(s, stage)) return false;
    const int64_t terms = terms_of(s, stage);
    return take_steps(s, stage, [&](Schedule& trial) { schedule_parts(trial, stage, terms); });
}

}  // namespace tw::schedules

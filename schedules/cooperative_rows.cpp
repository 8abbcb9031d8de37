#include "schedules/cooperative_rows.h"

#include <algorithm>

#include "schedules/long_reductions.h"
#include "schedules/producers.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t elements_wanted = 32;  // of a row, in a thread's registers
constexpr int64_t most_kept = 64;        // more than that spills, or leaves too few threads to hide latency

/// Neighbouring threads get neighbouring vectors of the row.
void spread(Schedule& s, Loop loop, bool reduces, const RowThreads& shape) {
    auto [step, inside] = s.split(loop, shape.threads * shape.neighbours, Tail::Mask, {"step", "in_step"});
    auto [share, element] = s.split(inside, shape.neighbours, {"share", "element"});
    s.bind(share, thread);
    if (shape.neighbours == 1) return;
    if (reduces)
        s.unroll(element);
    else
        s.bind(element, tw::vector);
}

/// The stage's loop along the row: its reduce loop or its last one.
void spread_stage(Schedule& s, const StageRef& stage, const RowThreads& shape) {
    bool reduces = s.reduces(stage);
    spread(s, reduces ? s.reduce(stage) : s.all_loops(stage).back(), reduces, shape);
}

}  // namespace

Loop bind_rows(Schedule& s, const std::vector<Loop>& loops, int64_t rows_of_block, std::source_location where) {
    CalledFrom caller(where);
    Loop rows = s.fuse(loops, "row");
    if (rows_of_block == 1) {
        s.bind(rows, grid.x);
        return rows;
    }
    auto [block, row] = s.split(rows, rows_of_block, Tail::Mask, {"block", "row_in_block"});
    s.bind(block, grid.x);
    s.bind(row, thread);
    return row;
}

RowThreads row_threads(int64_t columns, int64_t neighbours) {
    RowThreads shape{.threads = 32, .rows = 1, .neighbours = neighbours};
    while (shape.threads < 256 && shape.threads * neighbours * 4 < columns) shape.threads *= 2;
    while (shape.threads < 512 && shape.threads * elements_wanted < columns) shape.threads *= 2;
    shape.rows = std::max<int64_t>(128 / shape.threads, 1);
    shape.keep = columns <= shape.threads * most_kept;
    if (!shape.keep) shape.threads = 1024;
    return shape;
}

void schedule_cooperative_rows(Schedule& s, const Tensor& y, const RowThreads& shape, std::source_location where) {
    CalledFrom caller(where);
    Stage last = s[y];
    std::vector<Loop> rows = s.data_loops(y);
    if (!s.reduces(y)) rows.pop_back();
    Loop row = bind_rows(s, rows, shape.rows);
    std::vector<Stage> stages = producers_of(s, last);
    std::reverse(stages.begin(), stages.end());  // readers first
    std::vector<Stage> shared{last};
    for (Stage stage : stages) {
        if (stage.id == last.id) continue;
        if (s.data_loops(stage).empty()) {
            schedule_block_reduction(s, stage);
        } else if (!s.reduces(stage) && (!shape.keep || s.readers(stage).size() == 1)) {
            s.inline_stage(stage);
        } else {
            s.at(stage, row);
            s.set_memory(stage, Memory::Registers);
            shared.push_back(stage);
        }
    }
    for (auto stage = shared.rbegin(); stage != shared.rend(); ++stage) spread_stage(s, *stage, shape);
}

}  // namespace tw::schedules

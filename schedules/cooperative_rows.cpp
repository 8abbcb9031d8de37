#include "schedules/cooperative_rows.h"

#include <algorithm>
#include <map>

#include "dsl/tree.h"
#include "schedules/long_reductions.h"
#include "schedules/producers.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t elements_wanted = 32;    // of a row, in a thread's registers
constexpr int64_t most_that_divide = 256;  // threads of a row
constexpr int64_t most_kept = 64;          // more than that spills, or leaves too few threads to hide latency

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

/// Whether combining two values divides, as running means do by their counts.
bool divides(const ReducerNode& reducer) {
    return std::ranges::any_of(reducer.combined, [](const Expr& combined) {
        bool found = false;
        visit(combined, [&](const Expr& e) {
            const Binary* operation = e.as<Binary>();
            found = found || (operation && operation->op == BinaryOp::Div);
        });
        return found;
    });
}

/// Whether the statement has updates of the stage by a reducer that divides.
bool divides(const Stmt& stmt, int stage) {
    if (const For* loop = stmt.as<For>()) return divides(loop->body, stage);
    if (const Allocate* allocate = stmt.as<Allocate>()) return divides(allocate->body, stage);
    if (const Sequence* block = stmt.as<Sequence>())
        return std::ranges::any_of(block->stmts, [&](const Stmt& kid) { return divides(kid, stage); });
    const Leaf& leaf = *stmt.as<Leaf>();
    return leaf.stage == stage && leaf.reducer && divides(*leaf.reducer);
}

/// Each vector of the row in an accumulator of its own: how many terms that has is known at compile time, so that one
/// division is left for a vector. Returns those parts.
Stage in_parts(Schedule& s, const StageRef& stage, int64_t neighbours) {
    auto [vector, element] = s.split(s.reduce(stage), neighbours, Tail::Mask, {"vector", "element"});
    const Stage parts = s.rfactor(stage, vector);
    s.unroll(s.reduce(parts));
    return parts;
}

/// Threads share the parts, which are made where they are read.
void spread_parts(Schedule& s, const StageRef& stage, const Stage& parts, int64_t threads) {
    auto [step, share] = s.split(s.reduce(stage), threads, Tail::Mask, {"step", "share"});
    std::vector<Loop> order = s.all_loops(stage);
    std::swap(order[order.size() - 2], order[order.size() - 1]);
    s.order(order);
    s.bind(share, thread);
    s.at(parts, step);
    s.set_memory(parts, Memory::Registers);
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
    while (shape.threads > 4 && shape.threads / 2 * neighbours >= columns) shape.threads /= 2;
    while (shape.threads < 256 && shape.threads * neighbours * 4 < columns) shape.threads *= 2;
    while (shape.threads < 512 && shape.threads * elements_wanted < columns) shape.threads *= 2;
    shape.rows = std::max<int64_t>(128 / shape.threads, 1);
    shape.keep = columns <= shape.threads * most_kept;
    if (!shape.keep) shape.threads = 1024;
    return shape;
}

void schedule_cooperative_rows(Schedule& s, const Tensor& y, const RowThreads& given, std::source_location where) {
    CalledFrom caller(where);
    RowThreads shape = given;
    Stage last = s[y];
    std::vector<Stage> stages = producers_of(s, last);
    std::reverse(stages.begin(), stages.end());  // readers first
    std::map<int, Stage> parts;
    const Tree declared = s.tree();
    auto combines_by_dividing = [&](const Stage& stage) {
        return std::ranges::any_of(declared.nests, [&](const Nest& nest) { return divides(nest.body, stage.id); });
    };
    for (const Stage& stage : stages)
        if (shape.neighbours > 1 && !s.data_loops(stage).empty() && combines_by_dividing(stage) &&
            as_constant(s.extent(s.reduce(stage))))
            parts.emplace(stage.id, in_parts(s, stage, shape.neighbours));
    // Each thread combines what the warps have, which takes long where that divides.
    if (!parts.empty() && !shape.keep) shape.threads = std::min(shape.threads, most_that_divide);
    std::vector<Loop> rows = s.data_loops(y);
    user_check(s.reduces(y) || rows.size() > 1, where,
               "cooperative rows: '{}' reduces nothing and has {} dimensions, of which the last is taken for a row's "
               "elements: no rows are left; name what has elements for each row, or a reduction, or take "
               "schedule_serial_rows, a thread a row",
               y.name(), rows.size());
    if (!s.reduces(y)) rows.pop_back();
    Loop row = bind_rows(s, rows, shape.rows);
    std::vector<Stage> shared;
    auto share = [&](const Stage& stage) {
        if (const auto own = parts.find(stage.id); own != parts.end())
            spread_parts(s, stage, own->second, shape.threads);  // before what the parts read is placed
        else
            shared.push_back(stage);
    };
    share(last);
    for (Stage stage : stages) {
        if (stage.id == last.id) continue;
        if (s.data_loops(stage).empty()) {
            schedule_block_reduction(s, stage, shape.threads, shape.neighbours);
        } else if (!s.reduces(stage) && (!shape.keep || s.readers(stage).size() == 1)) {
            s.inline_stage(stage);
        } else {
            s.at(stage, row);
            s.set_memory(stage, Memory::Registers);
            share(stage);
        }
    }
    for (auto stage = shared.rbegin(); stage != shared.rend(); ++stage) spread_stage(s, *stage, shape);
}

}  // namespace tw::schedules

#include "schedules/scan_rows.h"

#include <algorithm>
#include <bit>

#include "schedules/share_reduction.h"
#include "schedules/take_steps.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t Threads = 256, WarpsOfShortRows = 4 * 32, TermsOfThread = 4;
constexpr int64_t EnoughRows = 128;         // a block each
constexpr int64_t EnoughColumns = 1 << 17;  // a thread each
constexpr int64_t LongRow = 1 << 15, LongColumn = 1 << 8;
constexpr int64_t PartOfRow = 1 << 13, PartOfColumn = 1 << 6;
constexpr int64_t Unknown = int64_t{1} << 20;  // for sizes that are known at launch

int64_t extent_of(const Schedule& s, Loop loop) { return as_constant(s.extent(loop)).value_or(Unknown); }

int64_t iterations_of(const Schedule& s, const std::vector<Loop>& loops) {
    int64_t all = 1;
    for (const Loop& loop : loops) all = std::min(all * extent_of(s, loop), Unknown);
    return all;
}

std::vector<Loop> all_but(std::vector<Loop> loops, Loop loop) {
    std::erase_if(loops, [&](const Loop& each) { return each.id == loop.id; });
    return loops;
}

/// Threads side by side have neighbours.
void spread_columns(Schedule& s, const std::vector<Loop>& columns, Loop running) {
    std::vector<Loop> order = columns;
    order.push_back(running);
    s.order(order);
    auto [block, column] = s.split(s.fuse(columns, "all"), Threads / 4, Tail::Mask, {"block", "column"});
    s.bind(block, grid.x);
    s.bind(column, thread);
}

/// As many threads a row as have four terms each, whole steps of them one behind the other.
void share_rows(Schedule& s, const std::vector<Loop>& rows, Loop running) {
    const int64_t wanted = (extent_of(s, running) + TermsOfThread - 1) / TermsOfThread;
    const auto share =
        std::clamp<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(wanted, 1))), 1, Threads);
    std::vector<Loop> order = rows;
    order.push_back(running);
    s.order(order);
    auto [step, in_step] = s.split(running, share * TermsOfThread, Tail::Mask, {"step", "in_step"});
    auto [part, term] = s.split(in_step, TermsOfThread, {"part", "term"});
    if (!rows.empty()) {
        const int64_t together = std::max<int64_t>(WarpsOfShortRows / share, 1);
        auto [block, row] = s.split(s.fuse(rows, "rows"), together, Tail::Mask, {"block", "row"});
        s.bind(block, grid.x);
        s.bind(row, thread);
    }
    s.bind(part, thread);
}

/// Terms whose order counts: each thread combines neighbours, and blocks have a result each.
void share_in_order(Schedule& s, Stage stage) {
    const Loop terms = s.reduce(stage);
    const int64_t each = std::max<int64_t>((extent_of(s, terms) + Threads - 1) / Threads, 1);
    std::vector<Loop> order = s.data_loops(stage);
    const auto [share, term] = s.split(terms, each, Tail::Mask, {"share", "term"});
    order.insert(order.end(), {share, term});
    s.order(order);
    order.resize(order.size() - 2);
    s.bind(order.size() > 1 ? s.fuse(order, "all") : order[0], grid.x);
    s.bind(share, thread);
}

void spread(Schedule& s, const std::vector<Loop>& others, Loop running, bool side_by_side) {
    if (side_by_side)
        spread_columns(s, others, running);
    else
        share_rows(s, others, running);
}

}  // namespace

std::optional<Loop> scanned_loop(const Schedule& s, Stage stage) {
    const std::vector<Loop> loops = s.all_loops(stage);
    if (!s.reduces(stage) || loops.size() < 2 || !s.terms_vary(stage)) return {};
    for (const Loop& loop : loops) {
        if (is_constant(s.extent(loop), 1) || is_constant(s.extent(loop), 0)) continue;
        try {
            Schedule trial = s;
            trial.running(stage, loop);
            trial.tree();
            return loop;
        } catch (const Error&) {  // steps alone decide what is a scan
        }
    }
    return {};
}

void schedule_scan(Schedule& s, Stage stage, Loop along) {
    const std::vector<Loop> loops = s.data_loops(stage), others = all_but(loops, along);
    const bool side_by_side = loops.back().id != along.id;
    const int64_t length = extent_of(s, along), rows = iterations_of(s, others);
    const bool in_parts = side_by_side ? rows < EnoughColumns && length >= LongColumn && rows < Unknown
                                       : rows < EnoughRows && length >= LongRow;
    const Loop running = s.running(stage, along);
    if (!in_parts) return spread(s, others, running, side_by_side);
    const Stage totals =
        s.rfactor(stage, s.split(running, side_by_side ? PartOfColumn : PartOfRow, Tail::Mask, {"part", "in_part"})[0]);
    const Stage before = s.readers(totals)[0];
    if (side_by_side)
        spread_results(s, totals, Threads);
    else if (!take_steps(s, totals, [&](Schedule& trial) { share_reduction(trial, totals); }))
        share_in_order(s, totals);
    const size_t axis = std::ranges::find(loops, along.id, &Loop::id) - loops.begin();
    const std::vector<Loop> of_before = s.data_loops(before);
    spread(s, all_but(of_before, of_before[axis]), of_before[axis], side_by_side);
    std::vector<Loop> left = s.all_loops(stage);  // the part stands where the axis was, in front of what is in it
    const Loop in_part = left[axis + 1];
    spread(s, all_but(left, in_part), in_part, side_by_side);
}

}  // namespace tw::schedules

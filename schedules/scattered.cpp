#include "schedules/scattered.h"
#include "schedules/require_sizes.h"
#include "support/error.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "dsl/walk.h"
#include "schedules/producers.h"

namespace tw::schedules {
namespace {

constexpr int64_t lanes = 32, rows_of_block = 4;
constexpr int64_t most_each = 8;        // elements that a thread updates, all loaded before
constexpr int64_t warps_wanted = 4096;  // about two waves of a large GPU's

/// The tensor that the terms of y take along its last axis.
std::optional<Tensor> terms_of(const Tensor& y) {
    const Operation& operation = *y.operation();
    std::optional<Tensor> found;
    visit(operation.outputs[0].body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (read && !read->indices.empty() && read->indices.back().same(operation.axes.back()))
            found = Tensor{read->operation, read->output};
    });
    return found;
}

/// Elements that a thread stores at once: neighbouring threads store neighbouring pieces, so that sectors are whole.
int64_t neighbours_of(const Tensor& y, int64_t width) { return std::gcd(16 / bytes_of(y.type()), width); }

/// Threads of a row: of few elements, as many as these are, rounded up to a power of 2.
int64_t threads_of_row(int64_t width) {
    if (width >= lanes)
        return std::clamp<int64_t>((width + most_each * lanes - 1) / (most_each * lanes) * lanes, lanes, 256);
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(width, 1))));
}

/// Neighbouring threads update neighbouring elements, so that a warp's updates are whole sectors; those of a thread are
/// all loaded before the first is made. Blocks of several rows: as many of one each would start too slowly.
void schedule_updates(Schedule& s, const Tensor& y, int64_t width) {
    constexpr int64_t threads_of_block = 256;
    const Stage updates = s.scatter(y, Combine::Atomic);
    schedule_fill(s, y);
    const int64_t threads = threads_of_row(width),
                  each = std::clamp<int64_t>((width + threads - 1) / threads, 1, most_each);
    auto [row, column] = s.loops<2>(updates);
    auto [block, row_in_block] = s.split(row, threads_of_block / threads, Tail::Mask, {"block", "row"});
    auto [tile, inside] = s.split(column, threads * each, Tail::Mask, {"tile", "in_tile"});
    auto [element, lane] = s.split(inside, threads, {"element", "t"});
    s.order({block, tile, row_in_block, lane, element});
    s.bind(block, grid.x);
    s.bind(tile, grid.y);
    s.bind(row_in_block, thread);
    s.bind(lane, thread);
    s.unroll(element);
    const std::optional<Tensor> x = terms_of(y);
    if (!x || each == 1) return;
    const Stage loaded = s.stage(updates, *x, Memory::Registers, row_in_block);
    auto [own, thread_of] = s.split(s.data_loops(loaded).back(), threads, Tail::Mask, {"element", "t"});
    s.unroll(own);
    s.bind(thread_of, thread);
}

/// A block reduces the terms of one row, in their order.
void schedule_sorted(Schedule& s, const Tensor& y, int64_t width) {
    const Stage terms = s.scatter(y);
    const int64_t neighbours = neighbours_of(y, width), vectors = (width + neighbours - 1) / neighbours,
                  threads = std::clamp<int64_t>((vectors + lanes - 1) / lanes * lanes, lanes, 256);
    auto [row, column] = s.loops<2>(terms);
    auto [tile, inside] = s.split(column, threads * neighbours, Tail::Mask, {"tile", "in_tile"});
    auto [lane, element] = s.split(inside, neighbours, {"t", "element"});
    s.order({row, tile, lane, s.reduce(y), element});
    s.bind(row, grid.x);
    s.bind(tile, grid.y);
    s.bind(lane, thread);
    if (neighbours > 1) s.bind(element, tw::vector);
}

/// A warp a row, or a part of one where there are few rows: its lanes look for the row's terms together, in the same
/// kernel, and most rows have none.
void schedule_searched(Schedule& s, const Tensor& y, int64_t rows, int64_t width) {
    s.scatter(y, Combine::Search);
    const int64_t neighbours = neighbours_of(y, width), step = lanes * neighbours;
    const int64_t steps = std::max<int64_t>((width + step - 1) / step, 1);
    int64_t parts = 1;
    while (parts < steps && rows * parts < warps_wanted) parts *= 2;
    auto [row, column] = s.loops<2>(y);
    auto [block, row_in_block] = s.split(row, rows_of_block, Tail::Mask, {"block", "row"});
    auto [part, in_part] = s.split(column, (steps + parts - 1) / parts * step, Tail::Mask, {"part", "in_part"});
    const int64_t together = std::min<int64_t>((steps + parts - 1) / parts, 4);
    auto [tile, in_tile] = s.split(in_part, together * step, Tail::Mask, {"tile", "in_tile"});
    auto [vector, in_vector] = s.split(in_tile, step, {"vector", "in_vector"});
    auto [lane, element] = s.split(in_vector, neighbours, {"t", "element"});
    s.order({block, part, row_in_block, lane, tile, s.reduce(y), vector, element});
    s.bind(block, grid.x);
    s.bind(part, grid.y);
    s.bind(row_in_block, thread);
    s.bind(lane, thread);
    s.unroll(vector);
    if (neighbours > 1) s.bind(element, tw::vector);
    for (const Stage& stage : producers_of(s, s[y])) {
        if (stage.id == s[y].id || !s.reduces(stage)) continue;
        s.at(stage, row_in_block);
        s.set_memory(stage, Memory::Registers);
        auto [round, share] = s.split(s.reduce(stage), lanes, Tail::Mask, {"round", "share"});
        s.order({share, round});
        s.bind(share, thread);
    }
}

}  // namespace

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

bool searches_terms(int64_t terms, int64_t rows, int64_t width) {
    // Instructions of warps: the search, and the terms of other rows between the first and the last of a row's own, of
    // terms in any order. Sorting takes eleven kernels, in which a large GPU issues so many.
    constexpr double of_a_search = 5, of_a_term = 10, of_sorting = 2.5e7;
    constexpr int64_t most_terms = 2048;
    if (terms > most_terms) return false;
    const double n = static_cast<double>(terms), v = static_cast<double>(rows);
    const double several = std::min(v, n * n / (2 * std::max(v, 1.0))), warps = static_cast<double>(width) / 128 + 1;
    return v * n / 32 * of_a_search + several * n / 3 * warps * of_a_term < of_sorting;
}

void schedule_scattered_rows(Schedule& s, const Tensor& y, int64_t rows, int64_t width, Combine combine,
                             std::source_location where) {
    CalledFrom caller(where);
    require_sizes("scattered rows", {{"rows", rows, 0}, {"width", width, 0}}, where);
    if (combine == Combine::Atomic) return schedule_updates(s, y, width);
    if (combine == Combine::Search) return schedule_searched(s, y, rows, width);
    schedule_sorted(s, y, width);
}

}  // namespace tw::schedules

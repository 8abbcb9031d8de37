#include "schedules/long_reductions.h"

#include <algorithm>
#include <optional>

#include "dsl/simplify.h"
#include "schedules/require_sizes.h"
#include "schedules/unit_product.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t blocks_wanted = 2048;  // of 256 threads: about two waves of 132 multiprocessors
constexpr int64_t least_terms = 8;       // a thread: loads that it can have in flight
constexpr int64_t few_blocks = 264;      // two for each multiprocessor of a large GPU: below, each has fewer terms

constexpr int64_t most_rows = 32;  // a thread, that its block reduces alone

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// A column tile a block (of each iteration of `outer`), vectors along columns, threads that share the terms. Of rows
/// that are no whole vectors, neighbouring threads read neighbouring elements.
void schedule_columns(Schedule& s, std::optional<Loop> outer, Loop columns, Loop rows, const ColumnThreads& shape) {
    const auto count = as_constant(s.extent(columns));
    const bool whole = !count || *count % shape.neighbours == 0;
    auto [tile, first, second] = whole ? s.split(columns, {shape.lanes * shape.neighbours, shape.neighbours},
                                                 Tail::Mask, {"tile", "column", "element"})
                                       : s.split(columns, {shape.lanes * shape.neighbours, shape.lanes}, Tail::Mask,
                                                 {"tile", "element", "column"});
    const Loop column = whole ? first : second, element = whole ? second : first;
    auto [step, row] = s.split(rows, shape.rows, Tail::Mask, {"step", "row"});
    if (outer)
        s.order({*outer, tile, row, column, step, element});
    else
        s.order({tile, row, column, step, element});
    s.bind(outer ? s.fuse(*outer, tile, "block") : tile, grid.x);
    s.bind({row, column}, thread);
    if (shape.neighbours == 1) return;
    if (whole)
        s.bind(element, tw::vector);
    else
        s.unroll(element);
}

}  // namespace

ColumnThreads column_threads(int64_t rows, int64_t columns, int64_t neighbours, std::source_location where) {
    require_sizes("column_threads", {{"rows", rows, 0}, {"columns", columns, 0}, {"neighbours", neighbours}}, where);
    ColumnThreads shape{.neighbours = neighbours};
    // Blocks enough without chunks, each of few rows: narrow tiles spare the second kernel.
    const ColumnThreads narrow{.lanes = 8, .rows = 32, .neighbours = neighbours, .chunk = rows};
    if (rows <= narrow.rows * most_rows && columns >= narrow.lanes * neighbours * few_blocks) return narrow;
    while (shape.lanes > 8 && shape.lanes / 2 * neighbours >= columns) shape.lanes /= 2, shape.rows *= 2;
    shape.rows = std::min<int64_t>(shape.rows, 16);
    int64_t tiles = std::max<int64_t>((columns + shape.lanes * neighbours - 1) / (shape.lanes * neighbours), 1);
    int64_t chunks = std::max<int64_t>(blocks_wanted / tiles, 1);
    shape.chunk = std::max(round_up((rows + chunks - 1) / chunks, shape.rows * least_terms), shape.rows * least_terms);
    return shape;
}

void schedule_column_reduction(Schedule& s, const Tensor& y, int64_t rows, const ColumnThreads& shape,
                               std::source_location where) {
    CalledFrom caller(where);
    require_sizes(
        "column threads",
        {{"lanes", shape.lanes}, {"rows", shape.rows}, {"neighbours", shape.neighbours}, {"chunk", shape.chunk}},
        where);
    std::vector<Loop> loops = s.data_loops(y);
    std::optional<Loop> outer;
    if (loops.size() == 2) outer = loops[0];
    std::vector<Loop> terms = s.all_loops(y);
    terms.erase(terms.begin(), terms.begin() + static_cast<std::ptrdiff_t>(loops.size()));
    const Loop row = terms.size() > 1 ? s.fuse(terms, "row") : terms[0];
    if (rows <= shape.chunk) return schedule_columns(s, outer, loops.back(), row, shape);
    auto [chunk, inside] = s.split(row, shape.chunk, Tail::Mask, {"chunk", "in_chunk"});
    Stage parts = s.rfactor(y, chunk);
    std::vector<Loop> parts_loops = s.data_loops(parts);  // chunk, column
    schedule_columns(s, parts_loops[0], parts_loops[1], s.reduce(parts), shape);
    int64_t chunks = (rows + shape.chunk - 1) / shape.chunk;
    schedule_columns(s, {}, s.data_loops(y)[0], s.reduce(y),
                     {.lanes = 32, .rows = std::clamp<int64_t>(chunks / 4, 1, 8), .neighbours = 1});
}

void schedule_block_reduction(Schedule& s, const StageRef& stage, int64_t threads, int64_t neighbours,
                              std::source_location where) {
    CalledFrom caller(where);
    auto [step, inside] = s.split(s.reduce(stage), threads * neighbours, Tail::Mask, {"step", "in_step"});
    auto [share, element] = s.split(inside, neighbours, {"share", "element"});
    s.order({share, step, element});
    s.bind(share, thread);
    if (neighbours > 1) s.unroll(element);
}

void schedule_full_reduction(Schedule& s, const Tensor& y, int64_t count, int64_t neighbours, Combine combine,
                             std::source_location where) {
    CalledFrom caller(where);
    require_sizes("full reduction", {{"count", count, 0}, {"neighbours", neighbours}}, where);
    const int64_t threads = 256, one = threads * neighbours;
    int64_t vectors = least_terms;
    while (vectors > 1 && count < one * vectors * few_blocks) vectors /= 2;
    const int64_t step = one * vectors;
    int64_t size = std::max(round_up((count + blocks_wanted - 1) / blocks_wanted, step), step);
    if (count <= size && combine == Combine::Workspace) return schedule_block_reduction(s, y, threads, neighbours);
    auto [chunk, inside] = s.split(s.reduce(y), size, Tail::Mask, {"chunk", "in_chunk"});
    Stage parts = s.rfactor(y, chunk, combine);
    s.bind(s.data_loops(parts)[0], grid.x);
    schedule_block_reduction(s, parts, threads, neighbours);
    if (combine == Combine::Workspace) schedule_block_reduction(s, y, threads, 4);
}

std::optional<ColumnReduction> column_reduction_of(const Tensor& c) {
    constexpr int64_t least_rows = 1024, least_columns = 8, vector_bytes = 16;
    const Operation& operation = *c.operation();
    const auto columns = c.rank() == 1 ? as_constant(c.shape()[0]) : std::nullopt;
    if (!columns || *columns < least_columns) return {};
    const Reduce* reduction = only_reduction(operation.outputs[0].body);
    for (const Operation::Output& output : operation.outputs)
        if (!only_reduction(output.body)) return {};
    if (!reduction) return {};
    int64_t rows = 1;
    for (const Expr& axis : reduction->axes) {
        const Expr& extent = axis.as<Variable>()->extent;
        rows *= extent.defined() ? as_constant(extent).value_or(0) : 0;
    }
    int64_t bytes = 0;  // of an element
    for (const Expr& value : reduction->values)
        visit(value, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (read && !read->indices.empty() && read->indices.back().same(operation.axes[0]))
                bytes = std::max<int64_t>(bytes, bytes_of(e.type()));
        });
    if (rows < least_rows || bytes == 0) return {};
    const int64_t neighbours = vector_bytes / bytes;
    return ColumnReduction{rows, column_threads(rows, *columns, *columns % neighbours == 0 ? neighbours : 1)};
}

}  // namespace tw::schedules

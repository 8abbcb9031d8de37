#include "schedules/column_threads.h"

#include <algorithm>
#include <numeric>

#include "dsl/simplify.h"
#include "schedules/require_sizes.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

constexpr int64_t waves_of_blocks = 2048;  // of 256 threads: about two waves of 132 multiprocessors
constexpr int64_t least_in_flight = 8;     // terms of a thread: loads that it can have under way
constexpr int64_t fewest_blocks = 264;  // two for each multiprocessor of a large GPU: below, threads have fewer terms

constexpr int64_t most_rows = 64;             // a thread, that its block reduces alone
constexpr int64_t blocks_of_one_round = 198;  // of these rows: what they load keeps memory busy
// Of rows that are no whole vectors: the same sectors are read by one warp, soon after each other, by many blocks of
// few rows; measured on an H200, of 150 to 33088 rows of 301 to 60412 columns.
constexpr int64_t lanes_of_pieces = 8, rows_of_pieces = 16, blocks_of_pieces = 8192, terms_of_pieces = 4;

// Of narrow rows that are no whole vectors, and of terms whose combining divides: single elements, whole rows of them
// where they are narrow, so that a block reads what lies one behind the other, and many of a thread's before threads
// meet.
constexpr int64_t most_of_whole_rows = 256, threads_of_whole_rows = 512, most_sharers = 16;
constexpr int64_t most_of_thread = 32, most_means_of_thread = 64;

int64_t up_to(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

bool combining_divides(const ReducerNode& reducer) {
    return std::ranges::any_of(reducer.combined, [](const Expr& combined) {
        bool found = false;
        visit(combined, [&](const Expr& e) {
            const Binary* operation = e.as<Binary>();
            found = found || (operation && operation->op == BinaryOp::Div);
        });
        return found;
    });
}

ColumnThreads column_threads(int64_t rows, int64_t columns, int64_t neighbours, int64_t others,
                             std::source_location where) {
    require_sizes("column_threads",
                  {{"rows", rows, 0}, {"columns", columns, 0}, {"neighbours", neighbours}, {"others", others, 0}},
                  where);
    ColumnThreads shape{.neighbours = neighbours};
    const bool in_pieces = columns % neighbours != 0;
    if (in_pieces) shape.lanes = lanes_of_pieces, shape.rows = rows_of_pieces;
    // Blocks enough without chunks, each of few rows: narrow tiles spare the second kernel.
    ColumnThreads narrow{.lanes = 8, .rows = 32, .neighbours = neighbours, .chunk = rows};
    if (rows > narrow.rows * most_rows / 2) narrow.steps = least_in_flight;  // however many rows there are
    if (rows <= narrow.rows * most_rows && columns * others >= narrow.lanes * neighbours * blocks_of_one_round)
        return narrow;
    while (shape.lanes > 8 && shape.lanes / 2 * neighbours >= columns) shape.lanes /= 2, shape.rows *= 2;
    // Narrower tiles where much of the last one's would lie behind the columns.
    auto padded = [&](int64_t lanes) { return up_to(columns, lanes * neighbours); };
    while (!in_pieces && shape.lanes > 8 && padded(shape.lanes) * 8 > padded(shape.lanes / 2) * 9)
        shape.lanes /= 2, shape.rows *= 2;
    shape.rows = std::min<int64_t>(shape.rows, 16);
    int64_t tiles =
        std::max<int64_t>((columns + shape.lanes * neighbours - 1) / (shape.lanes * neighbours) * others, 1);
    const int64_t least = shape.rows * (in_pieces ? terms_of_pieces : least_in_flight);
    const int64_t chunks = std::max<int64_t>((in_pieces ? blocks_of_pieces : waves_of_blocks) / tiles, 1);
    const bool is_single = std::gcd(columns, neighbours) == 1 && neighbours > 1;
    shape.chunk = is_single ? least : std::max(up_to((rows + chunks - 1) / chunks, least), least);
    // Twice as many terms, where blocks enough are left: beginning and ending take as long as few.
    const int64_t twice = 2 * least;
    if (!in_pieces && shape.chunk < twice && (rows + twice - 1) / twice * tiles >= waves_of_blocks / 3)
        shape.chunk = twice;
    return shape;
}

namespace {

/// Terms of a thread, in chunks of which there are blocks enough, if there can be.
void take_chunks(ColumnThreads& shape, int64_t rows, int64_t columns, int64_t others, int64_t most) {
    const int64_t tiles = (columns + shape.lanes - 1) / shape.lanes * others;
    int64_t terms = most;
    auto blocks = [&] { return (rows + shape.rows * terms - 1) / (shape.rows * terms) * tiles; };
    while (terms > least_in_flight && blocks() < fewest_blocks) terms /= 2;
    shape.chunk = shape.rows * terms;
}

/// Threads that stand in whole rows, one element each.
ColumnThreads whole_rows(int64_t columns) {
    return {.lanes = columns,
            .rows = std::clamp<int64_t>(threads_of_whole_rows / columns, 1, most_sharers),
            .neighbours = 1,
            .steps = least_in_flight};
}

/// Of terms whose combining divides.
ColumnThreads threads_of_means(int64_t rows, int64_t columns, int64_t others) {
    ColumnThreads shape{.lanes = 8, .rows = 32, .neighbours = 1, .chunk = rows, .steps = least_in_flight};
    const int64_t few_rows = shape.rows * 2 * least_in_flight;
    const bool has_blocks = columns * others >= shape.lanes * blocks_of_one_round;
    if (rows > few_rows && !(has_blocks && rows <= shape.rows * most_means_of_thread)) {
        if (columns <= most_of_whole_rows)
            shape = whole_rows(columns);
        else
            shape.lanes = 32, shape.rows = 8;
        take_chunks(shape, rows, columns, others, most_means_of_thread);
    }
    while (rows % shape.steps != 0 && shape.steps > least_in_flight / 2) shape.steps /= 2;
    if (rows % shape.steps != 0) shape.steps = least_in_flight;
    return shape;
}

/// Of elements of so many bytes.
ColumnThreads threads_of_sums(int64_t rows, int64_t columns, int64_t others, int64_t bytes) {
    constexpr int64_t long_rows = 1024, vector_bytes = 16;
    // Measured on an H200: more rows of 2110 to 5001 columns took 2.6 to 3.4 times as long by one kernel as in chunks;
    // of 16 bits fewer, or of more columns, 1.07 to 1.43 times as long by other threads or without rounds of several.
    constexpr int64_t long_rows_in_pieces = 257, most_steps_of_pieces = 4;
    const int64_t vector = vector_bytes / bytes,
                  neighbours = columns % vector == 0 || columns >= 8 * vector ? vector : 1;
    const bool in_pieces = columns % neighbours != 0;
    // One kernel, whose warps have whole sectors of all rows.
    ColumnThreads threads{.lanes = 32, .rows = 8, .neighbours = neighbours, .chunk = rows};
    if (columns % vector != 0 && columns <= most_of_whole_rows && rows >= long_rows) {
        threads = whole_rows(columns);
        take_chunks(threads, rows, columns, others, most_of_thread);
        return threads;
    }
    if (rows >= (in_pieces ? long_rows_in_pieces : long_rows))
        threads = column_threads(rows, columns, neighbours, others);
    else if (neighbours > 1)
        threads.lanes = 8, threads.rows = 32;
    if (in_pieces && rows <= threads.chunk) {
        threads.lanes = 2 * lanes_of_pieces, threads.rows = rows_of_pieces;
        while (threads.steps < most_steps_of_pieces && rows > threads.rows * threads.steps * 2) threads.steps *= 2;
    }
    return threads;
}

}  // namespace

std::optional<ColumnReduction> column_reduction_of(const Tensor& c) {
    constexpr int64_t least_rows = 32, least_columns = 8;
    // Of several axes, more results of fewer rows have a thread each.
    constexpr int64_t some_results = 1 << 15, most_results = 1 << 21, rows_of_many_results = 96;
    const Operation& operation = *c.operation();
    const auto columns = c.rank() > 0 ? as_constant(c.shape().back()) : std::nullopt;
    if (!columns || *columns < least_columns) return {};
    int64_t others = 1;
    for (int d = 0; d + 1 < c.rank(); ++d) {
        const auto extent = as_constant(c.shape()[d]);
        if (!extent || *extent == 0 || others * *extent * *columns > most_results) return {};
        others *= *extent;
    }
    const Reduce* reduction = only_reduction(operation.outputs[0].body);
    for (const Operation::Output& output : operation.outputs)
        if (!only_reduction(output.body)) return {};
    if (!reduction) return {};
    int64_t rows = 1;
    for (const Expr& axis : reduction->axes) {
        const Expr& extent = axis.as<Variable>()->extent;
        rows *= extent.defined() ? as_constant(extent).value_or(0) : 0;
    }
    auto varies = [&](const Expr& index) {
        return std::ranges::any_of(reduction->axes, [&](const Expr& axis) { return contains(index, axis); });
    };
    int64_t bytes = 0;  // of an element
    bool has_rows = false;
    for (const Expr& value : reduction->values)
        visit(value, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read || read->indices.empty() || std::ranges::none_of(read->indices, varies)) return;
            const Expr &column = operation.axes.back(), &last = read->indices.back();
            if (last.same(column)) bytes = std::max<int64_t>(bytes, bytes_of(e.type()));
            has_rows = has_rows || (varies(last) && std::ranges::any_of(read->indices, [&](const Expr& index) {
                                        return contains(index, column);
                                    }));
        });
    if (has_rows) return {};  // terms of a result side by side
    const bool is_many = c.rank() > 1 && others * *columns > some_results;
    if (rows < (is_many ? rows_of_many_results : least_rows) || bytes == 0) return {};
    return ColumnReduction{rows, combining_divides(*reduction->reducer)
                                     ? threads_of_means(rows, *columns, others)
                                     : threads_of_sums(rows, *columns, others, bytes)};
}

}  // namespace tw::schedules

#include "schedules/long_reductions.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "dsl/simplify.h"
#include "schedules/require_sizes.h"
#include "schedules/take_steps.h"
#include "schedules/unit_product.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t threads_of_block = 256;
constexpr int64_t blocks_wanted = 2048;  // of so many threads: about two waves of 132 multiprocessors
constexpr int64_t least_terms = 8;       // a thread: loads that it can have in flight
constexpr int64_t most_of_block = 4;     // vectors of a thread that cost less than the launch of a second kernel
constexpr int64_t few_blocks = 264;      // two for each multiprocessor of a large GPU: below, each has fewer terms

constexpr int64_t most_rows = 64;             // a thread, that its block reduces alone
constexpr int64_t blocks_of_one_round = 198;  // of these rows: what they load keeps memory busy
// Of rows that are no whole vectors: the same sectors are read by one warp, soon after each other, by many blocks of
// few rows; measured on an H200, of 150 to 33088 rows of 301 to 60412 columns.
constexpr int64_t lanes_of_pieces = 8, rows_of_pieces = 16, blocks_of_pieces = 8192, terms_of_pieces = 4;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

std::vector<Loop> reduce_loops(const Schedule& s, Stage stage) {
    std::vector<Loop> loops = s.all_loops(stage);
    loops.erase(loops.begin(), loops.begin() + static_cast<std::ptrdiff_t>(s.data_loops(stage).size()));
    return loops;
}

/// A column tile a block (of each iteration of the loops around columns), vectors along columns, threads that share the
/// terms. Of rows that are no whole vectors, neighbouring threads read neighbouring elements, or such vectors as the
/// rows are made of.
ColumnTerms schedule_columns(Schedule& s, Stage stage, Loop rows, const ColumnThreads& shape) {
    std::vector<Loop> others = s.data_loops(stage);
    const Loop columns = others.back();
    if (others.size() > 2) s.order(others);  // of parts, the number of the chunk stands inside
    others.pop_back();
    std::optional<Loop> outer;
    if (!others.empty()) outer = others.size() > 1 ? s.fuse(others, "others") : others[0];
    const auto count = as_constant(s.extent(columns));
    const int64_t vector = count ? std::gcd(*count, shape.neighbours) : shape.neighbours;
    const bool has_pieces = vector < shape.neighbours;
    auto named = [&](bool is_last, const char* name) { return is_last && vector == 1 ? "column" : name; };
    const auto [tile, in_tile] =
        s.split(columns, shape.lanes * shape.neighbours, Tail::Mask, {"tile", named(!has_pieces, "in_tile")});
    std::vector<Loop> pieces;  // of a thread's
    Loop inside = in_tile;
    if (has_pieces) {
        const auto [piece, in_piece] = s.split(in_tile, shape.lanes * vector, {"piece", named(true, "in_piece")});
        pieces.push_back(piece);
        inside = in_piece;
    }
    Loop column = inside;
    std::vector<Loop> elements;
    if (vector > 1) {
        const auto [first, element] = s.split(inside, vector, {"column", "element"});
        column = first;
        elements.push_back(element);
    }
    const int64_t of_round = shape.rows * shape.steps;
    const auto terms = as_constant(s.extent(rows));
    std::vector<Loop> rounds;
    Loop in_round = rows;
    if (shape.steps > 1) {
        const auto [round, inner] = s.split(rows, of_round, Tail::Mask, {"round", "in_round"});
        rounds.push_back(round);
        in_round = inner;
    }
    auto [together, row] = s.split(in_round, shape.rows, Tail::Mask, {"step", "row"});
    std::vector<Loop> order{tile, row, column};
    if (outer) order.insert(order.begin(), *outer);
    order.insert(order.end(), rounds.begin(), rounds.end());
    order.push_back(together);
    for (const auto* part : {&pieces, &elements}) order.insert(order.end(), part->begin(), part->end());
    s.order(order);
    s.bind(outer ? s.fuse(*outer, tile, "block") : tile, grid.x);
    s.bind({row, column}, thread);
    if (shape.steps > 1) s.unroll(together);
    for (const Loop& piece : pieces) s.unroll(piece);
    for (const Loop& element : elements) s.bind(element, tw::vector);
    // Whole rounds have no masks, and registers are those of one: compilers that unroll them have each load wait for
    // the one before under masks, and else leave room for few blocks.
    if (shape.steps > 1) {
        constexpr int64_t warps_of_multiprocessor = 32, lanes_of_warp = 32;
        const int64_t warps = (shape.lanes * shape.rows + lanes_of_warp - 1) / lanes_of_warp;
        if (terms && *terms > of_round && *terms % of_round != 0) s.cut(rounds[0], where_partial(stage));
        const int64_t blocks = std::min<int64_t>(warps_of_multiprocessor / warps, s.target().blocks_per_multiprocessor);
        if (blocks > 0) s.occupancy(stage, static_cast<int>(blocks));
    }
    return {pieces.empty() ? together : pieces[0], vector};
}

}  // namespace

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
    if (rows > narrow.rows * most_rows / 2) narrow.steps = least_terms;  // however many rows there are
    if (rows <= narrow.rows * most_rows && columns * others >= narrow.lanes * neighbours * blocks_of_one_round)
        return narrow;
    while (shape.lanes > 8 && shape.lanes / 2 * neighbours >= columns) shape.lanes /= 2, shape.rows *= 2;
    // Narrower tiles where much of the last one's would lie behind the columns.
    auto padded = [&](int64_t lanes) { return round_up(columns, lanes * neighbours); };
    while (!in_pieces && shape.lanes > 8 && padded(shape.lanes) * 8 > padded(shape.lanes / 2) * 9)
        shape.lanes /= 2, shape.rows *= 2;
    shape.rows = std::min<int64_t>(shape.rows, 16);
    int64_t tiles =
        std::max<int64_t>((columns + shape.lanes * neighbours - 1) / (shape.lanes * neighbours) * others, 1);
    const int64_t least = shape.rows * (in_pieces ? terms_of_pieces : least_terms);
    const int64_t chunks = std::max<int64_t>((in_pieces ? blocks_of_pieces : blocks_wanted) / tiles, 1);
    const bool is_single = std::gcd(columns, neighbours) == 1 && neighbours > 1;
    shape.chunk = is_single ? least : std::max(round_up((rows + chunks - 1) / chunks, least), least);
    // Twice as many terms, where blocks enough are left: beginning and ending take as long as few.
    const int64_t twice = 2 * least;
    if (!in_pieces && shape.chunk < twice && (rows + twice - 1) / twice * tiles >= blocks_wanted / 3)
        shape.chunk = twice;
    return shape;
}

ColumnTerms schedule_column_reduction(Schedule& s, const Tensor& y, int64_t rows, const ColumnThreads& shape,
                                      std::source_location where) {
    CalledFrom caller(where);
    require_sizes("column threads",
                  {{"lanes", shape.lanes},
                   {"rows", shape.rows},
                   {"neighbours", shape.neighbours},
                   {"chunk", shape.chunk},
                   {"steps", shape.steps}},
                  where);
    const std::vector<Loop> terms = reduce_loops(s, s[y]);
    const Loop row = terms.size() > 1 ? s.fuse(terms, "row") : terms[0];
    if (rows <= shape.chunk) return schedule_columns(s, s[y], row, shape);
    auto [chunk, inside] = s.split(row, shape.chunk, Tail::Mask, {"chunk", "in_chunk"});
    const Stage parts = s.rfactor(y, chunk);
    const ColumnTerms of_parts = schedule_columns(s, parts, s.reduce(parts), shape);
    schedule_parts_of_columns(s, y, (rows + shape.chunk - 1) / shape.chunk);
    return of_parts;
}

void schedule_parts_of_columns(Schedule& s, const StageRef& y, int64_t parts) {
    constexpr int64_t many = 256;  // then more blocks, of a sector a row, and loads under way for each thread
    if (parts >= many)
        return void(
            schedule_columns(s, s[y], s.reduce(y), {.lanes = 8, .rows = 32, .neighbours = 1, .steps = least_terms}));
    schedule_columns(s, s[y], s.reduce(y),
                     {.lanes = 32, .rows = std::clamp<int64_t>(parts / 4, 1, 8), .neighbours = 1});
}

namespace {

/// The threads of a block share the terms; each makes all results of the loops `own`, of which the block has one for
/// each iteration of the others.
void reduce_by_block(Schedule& s, Stage stage, int64_t threads, int64_t neighbours, const std::vector<Loop>& own) {
    const std::vector<Loop> loops = reduce_loops(s, stage);
    const Loop terms = loops.size() > 1 ? s.fuse(loops, "term") : loops[0];
    auto [step, inside] = s.split(terms, threads * neighbours, Tail::Mask, {"step", "in_step"});
    auto [share, element] = s.split(inside, neighbours, {"share", "element"});
    std::vector<Loop> order = s.data_loops(stage);
    std::erase_if(order, [&](const Loop& loop) { return std::ranges::find(own, loop.id, &Loop::id) != own.end(); });
    order.insert(order.end(), {share, step, element});
    order.insert(order.end(), own.begin(), own.end());
    s.order(order);
    s.bind(share, thread);
    if (neighbours > 1) s.unroll(element);
    for (const Loop& loop : own) s.unroll(loop);
}

}  // namespace

void schedule_block_reduction(Schedule& s, const StageRef& stage, int64_t threads, int64_t neighbours,
                              std::source_location where) {
    CalledFrom caller(where);
    reduce_by_block(s, s[stage], threads, neighbours, {});
}

void schedule_full_reduction(Schedule& s, const StageRef& y, int64_t count, int64_t neighbours, Combine combine,
                             std::source_location where) {
    CalledFrom caller(where);
    require_sizes("full reduction", {{"count", count, 0}, {"neighbours", neighbours}}, where);
    const std::vector<Loop> own = s.data_loops(s[y]);
    constexpr int64_t threads = threads_of_block;
    const int64_t one = threads * neighbours;
    int64_t vectors = least_terms;
    while (vectors > 1 && count < one * vectors * few_blocks) vectors /= 2;
    const int64_t step = one * vectors;
    int64_t size = std::max(round_up((count + blocks_wanted - 1) / blocks_wanted, step), step);
    const bool is_short = count <= std::max(size, most_of_block * one);
    if (is_short && combine == Combine::Workspace) return reduce_by_block(s, s[y], threads, neighbours, own);
    const std::vector<Loop> loops = reduce_loops(s, s[y]);
    const Loop terms = loops.size() > 1 ? s.fuse(loops, "term") : loops[0];
    auto [chunk, inside] = s.split(terms, size, Tail::Mask, {"chunk", "in_chunk"});
    Stage parts = s.rfactor(y, chunk, combine);
    std::vector<Loop> of_parts = s.data_loops(parts);
    const Loop number = of_parts[0];
    of_parts.erase(of_parts.begin());
    reduce_by_block(s, parts, threads, neighbours, of_parts);
    s.bind(number, grid.x);
    if (combine == Combine::Workspace) reduce_by_block(s, s[y], threads, 4, s.data_loops(s[y]));
}

std::optional<ColumnReduction> column_reduction_of(const Tensor& c) {
    constexpr int64_t least_rows = 32, long_rows = 1024, least_columns = 8, vector_bytes = 16;
    // Measured on an H200: more rows of 2110 to 5001 columns took 2.6 to 3.4 times as long by one kernel as in chunks;
    // of 16 bits fewer, or of more columns, 1.07 to 1.43 times as long by other threads or without rounds of several.
    constexpr int64_t long_rows_in_pieces = 257, most_steps_of_pieces = 4;
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
    const int64_t vector = vector_bytes / bytes,
                  neighbours = *columns % vector == 0 || *columns >= 8 * vector ? vector : 1;
    const bool in_pieces = *columns % neighbours != 0;
    // One kernel, whose warps have whole sectors of all rows.
    ColumnThreads threads{.lanes = 32, .rows = 8, .neighbours = neighbours, .chunk = rows};
    if (rows >= (in_pieces ? long_rows_in_pieces : long_rows))
        threads = column_threads(rows, *columns, neighbours, others);
    else if (neighbours > 1)
        threads.lanes = 8, threads.rows = 32;
    if (in_pieces && rows <= threads.chunk) {
        threads.lanes = 2 * lanes_of_pieces, threads.rows = rows_of_pieces;
        while (threads.steps < most_steps_of_pieces && rows > threads.rows * threads.steps * 2) threads.steps *= 2;
    }
    return ColumnReduction{rows, threads};
}

namespace {

/// Sees what the leaves under the loops are made of, and the innermost loop around each.
void see_terms(const Stmt& stmt, const Expr& innermost, const std::function<void(const Leaf&, const Expr&)>& see) {
    if (const Leaf* leaf = stmt.as<Leaf>()) return see(*leaf, innermost);
    if (const For* loop = stmt.as<For>()) return see_terms(loop->body, loop->variable, see);
    if (const Allocate* allocation = stmt.as<Allocate>()) return see_terms(allocation->body, innermost, see);
    if (const Sequence* sequence = stmt.as<Sequence>())
        for (const Stmt& each : sequence->stmts) see_terms(each, innermost, see);
}

}  // namespace

int64_t neighbours_of_terms(const Schedule& s, Stage stage) {
    int64_t bytes = 0;
    auto add = [&](const Expr& e, const Expr& innermost) {
        const Load* load = e.as<Load>();
        if (load && load->buffer->memory == Memory::Global && !load->indices.empty() &&
            load->indices.back().same(innermost))
            bytes = std::max<int64_t>(bytes, bytes_of(load->buffer->type));
    };
    for (const Nest& nest : s.tree().nests)
        see_terms(nest.body, {}, [&](const Leaf& leaf, const Expr& innermost) {
            if (leaf.stage != stage.id || leaf.kind != Leaf::Kind::Update) return;
            for (const StoreTo& store : leaf.stores) visit(store.value, [&](const Expr& e) { add(e, innermost); });
        });
    constexpr int64_t vector_bytes = 16;
    return bytes > 0 ? vector_bytes / bytes : 1;
}

bool take_full_reduction(Schedule& s, Stage stage) {
    constexpr int64_t least = 2048, most = int64_t{1} << 50;  // terms
    constexpr int64_t most_results = 8;                       // that a thread has in registers
    if (!s.reduces(stage)) return false;
    int64_t results = 1, count = 1;
    for (const Loop& loop : s.data_loops(stage)) {
        results *= std::min(as_constant(s.extent(loop)).value_or(most), most_results + 1);
        if (results == 0 || results > most_results) return false;
    }
    for (const Loop& loop : reduce_loops(s, stage)) {
        const auto extent = as_constant(s.extent(loop));
        if (!extent || *extent == 0) return false;
        count = std::min(count, most / *extent) * *extent;
    }
    const int64_t neighbours = neighbours_of_terms(s, stage);
    const bool fits_blocks =
        results > 1 && count <= most_of_block * threads_of_block * neighbours;  // one each takes less
    if (count < least || fits_blocks) return false;
    return take_steps(s, stage, [&](Schedule& trial) { schedule_full_reduction(trial, stage, count, neighbours); });
}

}  // namespace tw::schedules

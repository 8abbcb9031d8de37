#include "schedules/long_reductions.h"

#include <algorithm>
#include <bit>
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

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

std::vector<Loop> reduce_loops(const Schedule& s, Stage stage) {
    std::vector<Loop> loops = s.all_loops(stage);
    loops.erase(loops.begin(), loops.begin() + static_cast<std::ptrdiff_t>(s.data_loops(stage).size()));
    return loops;
}

/// What a reduction reads of inputs, element by element.
std::vector<Tensor> inputs_of(const Reduce& reduction) {
    std::vector<Tensor> found;
    for (const Expr& value : reduction.values)
        visit(value, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read || !read->operation->is_input() || read->guarded) return;
            const bool is_plain =
                std::ranges::all_of(read->indices, [](const Expr& index) { return index.as<Variable>() != nullptr; });
            const bool is_known =
                std::ranges::any_of(found, [&](const Tensor& t) { return t.operation() == read->operation; });
            if (is_plain && !is_known) found.push_back(Tensor(read->operation, 0));
        });
    return found;
}

/// Neighbouring terms of a thread's that have accumulators of their own, in which all are known to count: one division
/// is left for all of them, and they are loaded at once.
struct Grouping {
    bool is_wanted = false;
    std::vector<Tensor> ahead = {};  ///< read for a group before it is reduced
};
struct Groups {
    Stage stage;
    Loop terms;  ///< of what reduces groups
};
Groups in_groups(Schedule& s, Stage stage, Loop rows, int64_t terms) {
    const Loop group = s.split(rows, terms, Tail::Mask, {"group", "term"})[0];
    const Stage groups = s.rfactor(stage, group);
    s.unroll(s.reduce(groups));
    return {groups, s.reduce(stage)};
}

void make_groups_at(Schedule& s, Stage groups, Loop loop, const Grouping& grouping) {
    s.at(groups, loop);
    s.set_memory(groups, Memory::Registers);
    for (const Tensor& read : grouping.ahead) s.stage(groups, read, Memory::Registers, loop);
}

/// Whole rounds have no masks, and registers are those of one: compilers that unroll them have each load wait for the
/// one before under masks, and else leave room for few blocks.
void keep_rounds_whole(Schedule& s, Stage stage, Loop round, std::optional<int64_t> terms, const ColumnThreads& shape) {
    constexpr int64_t warps_of_multiprocessor = 32, lanes_of_warp = 32;
    const int64_t of_round = shape.rows * shape.steps;
    const int64_t warps = (shape.lanes * shape.rows + lanes_of_warp - 1) / lanes_of_warp;
    if (terms && *terms > of_round && *terms % of_round != 0) s.cut(round, where_partial(stage));
    const int64_t blocks = std::min<int64_t>(warps_of_multiprocessor / warps, s.target().blocks_per_multiprocessor);
    if (blocks > 0) s.occupancy(stage, static_cast<int>(blocks));
}

/// A column tile a block (of each iteration of the loops around columns), vectors along columns, threads that share the
/// terms. Of rows that are no whole vectors, neighbouring threads read neighbouring elements, or such vectors as the
/// rows are made of.
ColumnTerms schedule_columns(Schedule& s, Stage stage, Loop rows, ColumnThreads shape, const Grouping& grouping = {}) {
    std::optional<Groups> groups;
    if (grouping.is_wanted && shape.steps > 1) {
        groups = in_groups(s, stage, rows, shape.steps);
        rows = groups->terms;
        shape.steps = 1;
    }
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
    if (groups) make_groups_at(s, groups->stage, together, grouping);
    if (shape.steps > 1) s.unroll(together);
    for (const Loop& piece : pieces) s.unroll(piece);
    for (const Loop& element : elements) s.bind(element, tw::vector);
    if (shape.steps > 1) keep_rounds_whole(s, stage, rounds[0], terms, shape);
    return {pieces.empty() ? together : pieces[0], vector};
}

}  // namespace

namespace {

/// Each part of a thread's waits for the division before it: threads are many, of few columns in a block.
ColumnThreads threads_of_divided_parts(const Schedule& s, Stage stage, int64_t parts) {
    constexpr int64_t blocks = 64, threads = 256;
    int64_t columns = 1;
    for (const Loop& loop : s.data_loops(stage)) columns *= as_constant(s.extent(loop)).value_or(blocks);
    ColumnThreads shape{.lanes = 8, .neighbours = 1};
    while (shape.lanes > 1 && columns < shape.lanes * blocks) shape.lanes /= 2;
    shape.rows = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(parts)));
    shape.rows = std::min(shape.rows, threads / shape.lanes);
    return shape;
}

}  // namespace

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
    const Reduce* reduction = only_reduction(y.operation()->outputs[0].body);
    Grouping grouping{.is_wanted = reduction && combining_divides(*reduction->reducer)};
    // Under a mask, each read would wait for the division before it.
    if (grouping.is_wanted && rows % shape.steps != 0) grouping.ahead = inputs_of(*reduction);
    if (rows <= shape.chunk) return schedule_columns(s, s[y], row, shape, grouping);
    auto [chunk, inside] = s.split(row, shape.chunk, Tail::Mask, {"chunk", "in_chunk"});
    const Stage parts = s.rfactor(y, chunk);
    const ColumnTerms of_parts = schedule_columns(s, parts, s.reduce(parts), shape, grouping);
    const int64_t count = (rows + shape.chunk - 1) / shape.chunk;
    if (grouping.is_wanted)
        schedule_columns(s, s[y], s.reduce(y), threads_of_divided_parts(s, s[y], count));
    else
        schedule_parts_of_columns(s, y, count);
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

#include "schedules/scattered.h"
#include "support/error.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>

#include "dsl/stage.h"
#include "dsl/walk.h"
#include "schedules/choices.h"
#include "schedules/listed_rows.h"
#include "schedules/privatized_updates.h"
#include "schedules/producers.h"
#include "schedules/sorted_terms.h"
#include "schedules/take_steps.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

constexpr int64_t lanes = 32, searching_rows = 4;  // of a block
constexpr int64_t most_each = 8;                   // elements that a thread updates, all loaded before
constexpr int64_t warps_wanted = 4096;             // about two waves of a large GPU's
constexpr int64_t steps_of_tile = 4;               // of a warp, in registers
// Instructions of warps: of looking at 32 terms, of a tile's elements without any, and of all parts of rows together.
constexpr double of_a_search = 5, of_a_tile = 30, most_of_parts = 5e7;
constexpr int64_t blocks_of_searches = 2112, most_turns = 8;  // sixteen for each multiprocessor of a large GPU
constexpr int64_t stored_vector = 4;                          // elements that a lane stores at once: sectors are whole

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

/// A warp a row, or a part of one where there are few rows: its lanes look for the row's terms together, in the same
/// kernel, and most rows have none.
void schedule_searched(Schedule& s, const Stage& y, int64_t terms, int64_t rows, int64_t width) {
    std::set<int> declared;  // reductions that terms read, which have kernels
    for (const Stage& stage : producers_of(s, y)) declared.insert(stage.id);
    s.scatter(y, Combine::Search);
    const int64_t neighbours = std::gcd(stored_vector, width), step = lanes * neighbours;
    const int64_t steps = std::max<int64_t>((width + step - 1) / step, 1);
    // A warp passes the terms of other rows for each of its tiles: one tile each, unless searching takes longer.
    const double of_a_part = static_cast<double>(terms) / lanes * of_a_search + of_a_tile;
    int64_t parts = std::max<int64_t>((steps + steps_of_tile - 1) / steps_of_tile, 1);
    while (parts > 1 && rows * parts > warps_wanted && static_cast<double>(rows * parts) * of_a_part > most_of_parts)
        parts /= 2;
    auto [row, column] = s.loops<2>(y);
    // Of many rows a warp has several, one after another: a block takes longer to start than to search for one each.
    const int64_t turns = std::clamp<int64_t>(rows * parts / (blocks_of_searches * searching_rows), 1, most_turns);
    auto [block, in_block] = s.split(row, searching_rows * turns, Tail::Mask, {"block", "in_block"});
    auto [turn, row_in_block] = s.split(in_block, searching_rows, {"turn", "row"});
    auto [part, in_part] = s.split(column, (steps + parts - 1) / parts * step, Tail::Mask, {"part", "in_part"});
    const int64_t together = std::min<int64_t>((steps + parts - 1) / parts, steps_of_tile);
    auto [tile, in_tile] = s.split(in_part, together * step, Tail::Mask, {"tile", "in_tile"});
    auto [vector, in_vector] = s.split(in_tile, step, {"vector", "in_vector"});
    auto [lane, element] = s.split(in_vector, neighbours, {"t", "element"});
    s.order({block, part, turn, row_in_block, lane, tile, s.reduce(y), vector, element});
    s.bind(block, grid.x);
    s.bind(part, grid.y);
    s.bind(row_in_block, thread);
    s.bind(lane, thread);
    s.unroll(vector);
    if (neighbours > 1) s.bind(element, tw::vector);
    for (const Stage& stage : producers_of(s, y)) {
        if (stage.id == y.id || !s.reduces(stage) || declared.contains(stage.id)) continue;
        s.at(stage, row_in_block);
        s.set_memory(stage, Memory::Registers);
        auto [round, share] = s.split(s.reduce(stage), lanes, Tail::Mask, {"round", "share"});
        s.order({share, round});
        s.bind(share, thread);
    }
}

/// Whether the stage computes the tensor, which may have none: where it is inlined.
bool computes(const Schedule& s, const Stage& stage, const Tensor& y) try {
    return s[y].id == stage.id;
} catch (const Error&) {
    return false;
}

/// Whether terms in any order give the same bits: whole numbers that are added, minima and maxima.
bool has_exact_updates(const Schedule& s, const Stage& stage, const std::vector<Tensor>& outputs) {
    for (const auto& operation : operations_of(outputs)) {
        if (operation->is_input() || !computes(s, stage, Tensor(operation, 0))) continue;
        const Reduce* reduction = only_reduction(operation->outputs[0].body);
        const auto combine = reduction ? atomic_operation(*reduction->reducer) : std::nullopt;
        return combine && (*combine != BinaryOp::Add || !is_float(reduction->values[0].type()));
    }
    return false;
}

/// By accumulators for each row, if steps allow it.
bool schedule_as_few_rows(Schedule& s, Stage stage, const std::vector<Tensor>& outputs, const ScatteredSizes& sizes) {
    for (const auto& operation : operations_of(outputs)) {
        const Tensor y(operation, 0);
        if (operation->is_input() || !computes(s, stage, y)) continue;
        const std::optional<Tensor> x = terms_of(y);
        return x && take_steps(s, stage,
                               [&](Schedule& trial) { schedule_few_rows(trial, y, *x, sizes, Combine::Workspace); });
    }
    return false;
}

}  // namespace

void schedule_fill(Schedule& s, const StageRef& stage, std::source_location where) {
    CalledFrom caller(where);
    std::vector<Loop> loops = s.data_loops(stage);
    if (loops.empty()) return;  // a scalar: one thread
    constexpr int64_t threads = 256, vector = 4, most_vectors = 8,
                      blocks_wanted = 1056;  // eight for each multiprocessor
    const Loop all = s.fuse(loops, "all");
    int64_t vectors = most_vectors;
    while (vectors > 1 && as_constant(s.extent(all)).value_or(0) < blocks_wanted * threads * vector * vectors)
        vectors /= 2;
    auto [block, inside] = s.split(all, threads * vector * vectors, Tail::Mask, {"block", "in_block"});
    auto [step, in_step] = s.split(inside, threads * vector, {"step", "in_step"});
    auto [lane_of, element] = s.split(in_step, vector, {"t", "element"});
    s.order({block, lane_of, step, element});
    s.bind(block, grid.x);
    s.bind(lane_of, thread);
    s.unroll(step);
    s.bind(element, tw::vector);
}

ScatteredWay scattered_way(int64_t terms, int64_t rows, int64_t width) {
    const double n = static_cast<double>(terms), v = static_cast<double>(rows), w = static_cast<double>(width);
    // Microseconds. Each element compares its row with each term's, in blocks that begin; terms come one after another.
    constexpr double of_launch = 2.5, of_a_comparison = 6 / 32.0 / 4.3e5, of_a_block = 1e-3 / 256, in_series = 0.02;
    const double compared = of_launch + std::max({v * w * n * of_a_comparison, v * w * of_a_block, n * in_series});
    // Rows are stored behind the last kernel that sorts, but while lists are made: what takes less is hidden mostly.
    constexpr double stored_in_a_microsecond = 1.05e6, not_hidden = 0.4, of_doubt = 1;
    const ScatteredSizes sizes{terms, rows, width};
    const double stored = v * w / stored_in_a_microsecond, to_list = microseconds_to_list(sizes);
    const double listed = std::max(to_list, stored) + not_hidden * std::min(to_list, stored);
    const double sorted = microseconds_to_sort(sizes) + stored;
    if (compared <= std::min(listed, sorted)) return ScatteredWay::Compared;
    return listed + of_doubt < sorted ? ScatteredWay::Listed : ScatteredWay::Sorted;
}

void schedule_scattered_updates(Schedule& s, const Tensor& y, std::source_location where) {
    CalledFrom caller(where);
    const auto width = y.rank() == 2 ? as_constant(y.shape().back()) : std::nullopt;
    user_check(width, where, "scattered updates: '{}' has {} dimensions; give rows and a constant width", y.name(),
               y.shape().size());
    const auto terms = as_constant(s.extent(s.reduce(y))), rows = as_constant(y.shape()[0]);
    const ScatteredSizes sizes{terms.value_or(0), rows.value_or(0), *width};
    const std::optional<Tensor> x = terms_of(y);
    if (x && are_few_rows(sizes, Combine::Atomic) && take_steps(s, s[y], [&](Schedule& trial) {
            schedule_few_rows(trial, y, *x, sizes, Combine::Atomic);
            schedule_fill(trial, y);
        }))
        return;
    schedule_updates(s, y, *width);
}

bool schedule_scattered(Schedule& s, Stage stage, const std::vector<Tensor>& outputs) {
    if (!s.scatters(stage)) return false;
    const std::vector<Loop> data = s.data_loops(stage);
    constexpr int64_t some = 4096;  // where an extent is not known
    int64_t terms = 1, rows = 1;
    for (const Loop& loop : s.all_loops(stage)) {
        const bool is_data = std::ranges::any_of(data, [&](const Loop& own) { return own.id == loop.id; });
        if (!is_data) terms *= as_constant(s.extent(loop)).value_or(some);
    }
    const int64_t width = data.size() > 1 ? as_constant(s.extent(data.back())).value_or(some) : 1;
    for (size_t d = 0; d < std::max<size_t>(data.size(), 2) - 1 && d < data.size(); ++d)
        rows *= as_constant(s.extent(data[d])).value_or(some);
    static const std::vector<std::string> ways{"compared", "sorted", "listed", "searched", "privatized", "few_rows"};
    const bool known = data.size() == 2 && as_constant(s.extent(data[0])) && as_constant(s.extent(data[1]));
    const ScatteredSizes sizes{terms, rows, width};
    const bool privatized = may_be_privatized(s, stage) && has_exact_updates(s, stage, outputs);
    const std::string of_many =
        privatized ? "privatized" : ways[static_cast<size_t>(scattered_way(terms, rows, width))];
    const std::string by_rule = known && are_few_rows(sizes, Combine::Workspace) ? "few_rows" : of_many;
    const std::string name = s.name(stage);
    std::string way = pick(name, "terms", ways, by_rule);
    if (way == "few_rows") {
        if (known && schedule_as_few_rows(s, stage, outputs, sizes)) return true;
        way = of_many;  // terms choose along another dimension than rows, say
    }
    took(name, "terms", way);
    if (way == "privatized" && privatized && schedule_privatized(s, stage)) return true;
    if (way == "searched" && known &&
        take_steps(s, stage, [&](Schedule& trial) { schedule_searched(trial, stage, terms, rows, width); }))
        return true;
    if (way == "listed" && known && terms > 0 &&
        take_steps(s, stage, [&](Schedule& trial) { schedule_listed(trial, stage, terms, listed_tiles(sizes)); }))
        return true;
    const bool compares = way == "compared" || (way == "searched" && of_many != "sorted");
    took(name, "terms", compares ? "compared" : "sorted");
    if (!compares) spread_sorted(s, s.scatter(stage), sizes);
    return !compares;
}

}  // namespace tw::schedules

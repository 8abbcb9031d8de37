#include "schedules/transposed.h"

#include <algorithm>
#include <numeric>
#include <ranges>

#include "dsl/simplify.h"
#include "schedules/elementwise.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// The only tensor that a copy reads, and the copy's axis along which rows of it run, if it has rows of more than one.
struct Turned {
    Tensor source;
    size_t along;
};
std::optional<Turned> turned(const Tensor& copy, const std::vector<Tensor>& outputs) {
    const Operation& operation = *copy.operation();
    std::vector<Expr> reads;
    visit(with_elements(operation.outputs[0].body, outputs, true), [&](const Expr& e) {
        const Read* read = e.as<Read>();
        const bool is_known = read && std::ranges::any_of(reads, [&](const Expr& other) { return equal(other, e); });
        if (read && !is_known) reads.push_back(e);
    });
    if (reads.size() != 1 || reads[0].as<Read>()->indices.empty()) return {};
    const Read& read = *reads[0].as<Read>();
    const Expr& row = read.indices.back();
    auto is_one = [&](size_t d) { return as_constant(copy.shape()[d]) == 1; };
    if (contains(row, operation.axes.back())) return {};
    for (size_t d = operation.axes.size() - 1; d-- > 0;)
        if (coefficient(affine_of(row), operation.axes[d]) == 1 &&
            !std::ranges::all_of(std::views::iota(size_t{d > 0}, d + 1), is_one))
            return Turned{{read.operation, read.output}, d};
    return {};
}

Loop as_one(Schedule& s, const std::vector<Loop>& loops, const std::string& name) {
    return loops.size() > 1 ? s.fuse(loops, name) : loops[0];
}

}  // namespace

void schedule_copy(Schedule& s, const Tensor& copy, const std::vector<Tensor>& outputs, std::source_location where) {
    CalledFrom caller(where);
    const auto source = turned(copy, outputs);
    if (!source) return schedule_dense_copy(s, copy);
    const std::vector<Loop> loops = s.data_loops(copy);
    const auto own = loops.begin() + static_cast<std::ptrdiff_t>(source->along) + 1,
               first = loops.begin() + (source->along > 0 ? 1 : 0);
    const Loop i = as_one(s, {first, own}, "i"), j = as_one(s, {own, loops.end()}, "j");
    const int64_t neighbours = 16 / bytes_of(copy.type()), threads = 256,
                  columns = std::clamp(rounded_up(as_constant(s.extent(j)).value_or(64), neighbours), neighbours,
                                       int64_t{64}),
                  lanes = columns / neighbours, rows = std::max<int64_t>(threads / lanes, 64);
    auto [block_i, tile_i] = s.split(i, rows, Tail::Mask, {"block_i", "tile_i"});
    auto [block_j, tile_j] = s.split(j, columns, Tail::Mask, {"block_j", "tile_j"});
    auto [step, row] = s.split(tile_i, std::min(threads / lanes, rows), Tail::Mask, {"step", "row"});
    auto [lane_of, element] = s.split(tile_j, neighbours, {"t", "element"});
    std::vector<Loop> blocks{loops.begin(), first}, order;
    blocks.insert(blocks.end(), {block_i, block_j});
    order = blocks;
    order.insert(order.end(), {row, lane_of, step, element});
    s.order(order);
    const Loop block = s.fuse(blocks, "block");
    s.bind(block, grid.x);
    s.bind(row, thread);
    s.bind(lane_of, thread);
    s.bind(element, tw::vector);
    s.stage(copy, source->source, Memory::Shared, block, As::Matrix);
}

}  // namespace tw::schedules

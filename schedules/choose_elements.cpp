#include "schedules/choose_elements.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/deep.h"
#include "dsl/edit.h"
#include "dsl/simplify.h"
#include "schedules/choices.h"
#include "schedules/elements_beside.h"
#include "schedules/share_reduction.h"
#include "schedules/take_steps.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t Threads = 256, FewThreads = 64, WarpThreads = 32;
constexpr int64_t MostBytes = 16, MostSteps = 4;  // of a vector; of a thread
constexpr int64_t BytesWanted = 32;               // that a thread loads before it needs them
constexpr int64_t MostOperations = 1 << 13;       // that a thread's elements are made of, unrolled
constexpr int64_t MostOperationsOfOne = 1 << 12;  // beyond, building twice takes too long
constexpr int64_t FewTiles = 4;
constexpr int64_t MostTileBytes = 48 << 10;  // of shared memory: four blocks side by side at least
constexpr double Scattered = 9;              // of cost_of: eight lines a request of a warp

/// Elements of a thread: `steps` vectors, those of its block's other threads between them.
struct Spread {
    int64_t threads = Threads, vector = 1, steps = 1;
    int64_t elements() const { return threads * vector * steps; }
};

/// What is stored as one leaves by one request.
int64_t cheapest_vector(const Elements& elements) {
    int64_t best = 1, bytes = 1;
    for (const ElementAccess& access : elements.accesses)
        if (access.is_store) bytes = std::max<int64_t>(bytes, bytes_of(access.buffer->type));
    double least = cost_of_all(elements, 1);
    for (int64_t vector = 2; vector * bytes <= MostBytes; vector *= 2)
        if (const double cost = cost_of_all(elements, vector); cost < least) least = cost, best = vector;
    return best;
}

/// Not what all elements read, like a bias.
bool is_large(const Elements& elements, const ElementAccess& access) {
    return size_of(*access.buffer).value_or(elements.count()) >= elements.count() / 4;
}

int64_t steps_of(const Elements& elements, int64_t vector) {
    int64_t bytes = 0;
    std::set<const BufferNode*> read;  // what is read at another place, too, of all columns say, is in caches
    for (const ElementAccess& access : elements.accesses)
        if (!access.is_store && is_large(elements, access) && read.insert(access.buffer.get()).second)
            bytes += vector * bytes_of(access.buffer->type);
    return std::clamp<int64_t>(BytesWanted / std::max<int64_t>(bytes, 1), 1, MostSteps);
}

/// Vectors, if there are threads enough; blocks for all multiprocessors first. Where much is computed of eight elements
/// before the next are loaded, of four at a time: GELU by erf of bf16 took 0.83 and 0.89 of the time so.
Spread spread_of(const Elements& elements, const Target& target) {
    constexpr double much = 16;
    constexpr int64_t many = 8;
    Spread spread{.vector = cheapest_vector(elements)};
    spread.steps = steps_of(elements, spread.vector);
    if (elements.instructions_of_functions >= much && spread.vector >= many) spread.vector /= 2, spread.steps *= 2;
    while (spread.vector * spread.steps > 1 && spread.vector * spread.steps * elements.operations > MostOperations)
        (spread.steps > 1 ? spread.steps : spread.vector) /= 2;
    const int64_t blocks = std::max(target.multiprocessors, 1);
    auto has_blocks = [&](int64_t wanted) { return divided(elements.count(), spread.elements()) >= wanted; };
    while (!has_blocks(2 * blocks) && spread.steps > 1) spread.steps /= 2;
    while (!has_blocks(2 * blocks) && spread.threads > FewThreads) spread.threads /= 2;
    while (!has_blocks(blocks) && spread.vector > 1) spread.vector /= 2;
    return spread;
}

/// Of these sizes, or of those that are picked: what is legal for each type that is stored.
Spread pick_spread(const std::string& name, const Elements& elements, Spread spread) {
    int64_t bytes = 1;
    for (const ElementAccess& access : elements.accesses)
        if (access.is_store) bytes = std::max<int64_t>(bytes, bytes_of(access.buffer->type));
    std::vector<int64_t> vectors{1, 2, 4, 8, 16}, steps{1, 2, 4, 8};
    std::erase_if(vectors, [&](int64_t each) { return each * bytes > MostBytes; });
    spread.vector = pick(name, "vector", vectors, spread.vector);
    std::erase_if(steps, [&](int64_t each) { return each * spread.vector * elements.operations > MostOperations; });
    spread.steps = pick(name, "steps", steps, spread.steps);
    spread.threads = pick(name, "threads", {64, 128, 256, 512}, spread.threads);
    return spread;
}

/// What has come of all that is asked of elements.
void tell_elements(const std::string& name, const std::string& way, const Spread& taken) {
    took(name, "elements", way);
    took(name, "vector", taken.vector);
    took(name, "steps", taken.steps);
    took(name, "threads", taken.threads);
}

void spread_vectors(Schedule& s, Stage stage, const Spread& spread) {
    auto [block, inside] =
        s.split(s.fuse(s.data_loops(stage), "all"), spread.elements(), Tail::Mask, {"block", "in_block"});
    auto [step, part] = s.split(inside, spread.threads * spread.vector, {"step", "in_step"});
    auto [lane_of, element] = s.split(part, spread.vector, {"t", "element"});
    s.order({block, lane_of, step, element});
    s.bind(block, grid.x);
    s.bind(lane_of, thread);
    s.unroll(step);
    if (spread.vector > 1) s.bind(element, tw::vector);
}

/// An element of a tensor that is there, and what computes it, or the input.
struct TurnedOperand {
    ElementAccess access;
    StageRef handle;
};
std::optional<StageRef> handle_of(const Schedule& s, const BufferNode& buffer) {
    for (const Stage& stage : s.all_stages())
        if (s.name(stage) == buffer.name) return stage;
    for (const auto& operation : operations_of(s.outputs()))
        if (operation->is_input() && operation->name == buffer.name) return StageRef(Tensor(operation, 0));
    return {};
}

/// Operands whose rows run along the loop `along`, an outer one; from `first` on up to there loops run through their
/// memory as one.
struct Turned {
    std::vector<TurnedOperand> operands;
    size_t first = 0, along = 0;
};

/// The loop along which neighbours of the buffer are, if that is none of the innermost's.
std::optional<size_t> row_of(const Elements& elements, const Affine& place) {
    const auto last = coefficient(place, elements.loops.back());
    if (!last || *last == 0 || *last == 1) return {};
    for (size_t l = elements.loops.size() - 1; l-- > 0;)
        if (coefficient(place, elements.loops[l]) == 1 && elements.extents[l] > 1) return l;
    return {};
}

bool is_read_once(const Elements& elements, const ElementAccess& access) {
    return std::ranges::count_if(elements.accesses,
                                 [&](const ElementAccess& other) { return other.buffer == access.buffer; }) == 1;
}

std::optional<Turned> turned_operands(const Schedule& s, const Elements& elements, int64_t vector) {
    Turned turned;
    for (const ElementAccess& access : elements.accesses) {
        if (access.is_store || !is_large(elements, access)) continue;
        if (cost_of(elements, access, vector) < Scattered || !is_read_once(elements, access)) continue;
        const auto along = row_of(elements, affine_of(access.place));
        if (!along || (!turned.operands.empty() && *along != turned.along)) continue;
        const auto handle = handle_of(s, *access.buffer);
        if (!handle) continue;
        turned.along = *along;
        turned.operands.push_back({access, *handle});
    }
    if (turned.operands.empty()) return {};
    auto follows = [&](size_t l) {  // the loop inside of it, in the memory of all
        return std::ranges::all_of(turned.operands, [&](const TurnedOperand& operand) {
            const Affine place = affine_of(operand.access.place);
            const auto outer = coefficient(place, elements.loops[l]), inner = coefficient(place, elements.loops[l + 1]);
            return outer && inner && *outer == *inner * elements.extents[l + 1];
        });
    };
    for (turned.first = turned.along; turned.first > 0 && follows(turned.first - 1);) --turned.first;
    return turned;
}

/// Tiles of the axes up to `along` and of those behind it.
struct Tile {
    int64_t side = 64, threads = 256;
    int64_t neighbours = 0, columns = 0, lanes = 0, rows_of_threads = 0;
};
Tile tile_of(const std::string& name, const Elements& elements, const Turned& turned, const Target& target) {
    int64_t columns = 1, bytes = 1;
    for (size_t l = turned.along + 1; l < elements.extents.size(); ++l) columns *= elements.extents[l];
    for (const ElementAccess& access : elements.accesses)
        if (access.is_store) bytes = std::max<int64_t>(bytes, bytes_of(access.buffer->type));
    Tile tile;
    // Of few tiles smaller ones: more multiprocessors copy at once.
    constexpr int64_t tiles_of_one = 10;
    if (elements.count() < tiles_of_one * std::max(target.multiprocessors, 1) * tile.side * tile.side) tile.side /= 2;
    tile.side = pick(name, "side", {32, 64, 128}, tile.side);
    tile.threads = pick(name, "tile_threads", {128, 256, 512}, tile.threads);
    tile.neighbours = std::gcd(16 / bytes, columns);
    tile.columns = std::min(columns, tile.side);
    tile.lanes = tile.columns / tile.neighbours;
    tile.rows_of_threads = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tile.threads / tile.lanes)));
    tile.rows_of_threads = std::min(tile.rows_of_threads, tile.side);
    return tile;
}

/// In shared memory; and for so many multiprocessors that it is worthwhile.
bool has_room(const Elements& elements, const Turned& turned, const Tile& tile, const Target& target) {
    const int64_t area = tile.side * tile.side;
    int64_t bytes = 0;
    for (const TurnedOperand& operand : turned.operands) bytes += area * bytes_of(operand.access.buffer->type);
    return bytes <= MostTileBytes && elements.count() >= std::max<int64_t>(FewTiles, target.multiprocessors / 8) * area;
}

void spread_tiles(Schedule& s, Stage stage, const Turned& turned, const Tile& tile) {
    const std::vector<Loop> loops = s.data_loops(stage);
    const auto first = loops.begin() + static_cast<std::ptrdiff_t>(turned.first),
               own = loops.begin() + static_cast<std::ptrdiff_t>(turned.along) + 1;
    const bool joins = own - first > 1 || loops.end() - own > 1 || first != loops.begin();
    const Loop i = s.fuse({first, own}, "i"), j = s.fuse({own, loops.end()}, "j");
    auto [block_i, tile_i] = s.split(i, tile.side, Tail::Mask, {"block_i", "tile_i"});
    auto [block_j, tile_j] = s.split(j, tile.columns, Tail::Mask, {"block_j", "tile_j"});
    auto [step, row] = s.split(tile_i, tile.rows_of_threads, {"step", "row"});
    auto [lane_of, element] = s.split(tile_j, tile.neighbours, {"t", "element"});
    std::vector<Loop> blocks{loops.begin(), first};
    blocks.insert(blocks.end(), {block_i, block_j});
    std::vector<Loop> order = blocks;
    order.insert(order.end(), {row, lane_of, step, element});
    s.order(order);
    const Loop block = s.fuse(blocks, "block");
    s.bind(block, grid.x);
    s.bind(row, thread);
    s.bind(lane_of, thread);
    if (tile.neighbours > 1) s.bind(element, tw::vector);
    for (const TurnedOperand& operand : turned.operands) {
        if (joins)
            s.stage(stage, operand.handle, Memory::Shared, block, As::Matrix);
        else
            s.stage(stage, operand.handle, Memory::Shared, block);
    }
}

bool takes_tiles(Schedule& s, Stage stage, const Elements& elements, int64_t vector) {
    const auto turned = turned_operands(s, elements, vector);
    if (!turned) return false;
    const Tile tile = tile_of(s.name(stage), elements, *turned, s.target());
    if (!has_room(elements, *turned, tile, s.target())) return false;
    if (!take_steps(s, stage, [&](Schedule& trial) { spread_tiles(trial, stage, *turned, tile); })) return false;
    tell_elements(s.name(stage), "tiles",
                  {.threads = tile.rows_of_threads * tile.lanes,
                   .vector = tile.neighbours,
                   .steps = tile.side / tile.rows_of_threads});
    std::vector<std::string> names;
    for (const TurnedOperand& operand : turned->operands) names.push_back("'" + operand.access.buffer->name + "'");
    Edit::note(s, fmt::format("'{}': tiles of {} x {}, through shared memory: rows of {} run along another axis",
                              s.name(stage), tile.side, tile.columns, fmt::join(names, ", ")));
    return true;
}

/// Vectors along rows, which all of the stages have alike: those of `beside` are made by the threads that make
/// `stage`'s. A block has `num_rows` rows, or a part of one.
void spread_beside(Schedule& s, Stage stage, const std::vector<Stage>& beside, const Spread& spread, int64_t num_rows) {
    std::vector<Loop> rows = s.data_loops(stage);
    Loop inside = rows.back();
    rows.pop_back();
    if (num_rows > 1) {
        auto [block, row] = s.split(s.fuse(rows, "row"), num_rows, Tail::Mask, {"block", "row"});
        s.bind(block, grid.x);
        s.bind(row, thread);
    } else {
        auto [tile, in_tile] = s.split(inside, spread.threads * spread.vector, Tail::Mask, {"tile", "in_tile"});
        rows.push_back(tile);
        s.bind(s.fuse(rows, "block"), grid.x);
        inside = in_tile;
    }
    auto [lane_of, element] = s.split(inside, spread.vector, {"t", "element"});
    s.bind(lane_of, thread);
    if (spread.vector > 1) s.bind(element, tw::vector);
    for (const Stage& other : beside) {
        s.at(other, lane_of);
        if (spread.vector > 1) s.bind(s.data_loops(other).back(), tw::vector);
    }
}

/// Rows of whole vectors; short ones several a block.
bool takes_beside(Schedule& s, Stage stage, const Elements& elements) {
    const std::vector<Stage> beside = outputs_beside(s, stage, elements);
    if (beside.empty()) return false;
    const Elements all = together(s, elements, beside);
    Spread spread = pick_spread(s.name(stage), all, spread_of(all, s.target()));
    const int64_t row = elements.extents.back(), rows = elements.count() / std::max<int64_t>(row, 1);
    while (row % spread.vector != 0) spread.vector /= 2;
    if (turned_operands(s, all, spread.vector)) return false;
    const int64_t of_row = row / spread.vector, num_rows = std::clamp<int64_t>(spread.threads / of_row, 1, rows);
    if (num_rows * of_row < WarpThreads) return false;
    if (num_rows == 1) spread.threads = std::min(spread.threads, rounded_up(of_row, WarpThreads));
    if (!take_steps(s, stage, [&](Schedule& trial) { spread_beside(trial, stage, beside, spread, num_rows); }))
        return false;
    tell_elements(s.name(stage), "beside", {.threads = spread.threads, .vector = spread.vector});
    std::vector<std::string> names;
    for (const Stage& other : beside) names.push_back("'" + s.name(other) + "'");
    Edit::note(s, fmt::format("'{}': vectors of {} elements, with those of {} beside them", s.name(stage),
                              spread.vector, fmt::join(names, ", ")));
    return true;
}

bool takes_vectors(Schedule& s, Stage stage, const Spread& spread) {
    if (spread.vector * spread.steps == 1) return false;
    if (!take_steps(s, stage, [&](Schedule& trial) { spread_vectors(trial, stage, spread); })) return false;
    tell_elements(s.name(stage), "vectors", spread);
    const std::string of =
        spread.vector == 1 ? "single elements" : fmt::format("vectors of {} elements", spread.vector);
    Edit::note(s, fmt::format("'{}': {}, {} a thread", s.name(stage), of, spread.steps));
    return true;
}

}  // namespace

void schedule_elements(Schedule& s, Stage stage) {
    if (stands_beside(s, stage)) return;
    const auto elements = elements_of(s, stage);
    if (!elements || elements->operations > MostOperationsOfOne) return spread_results(s, stage, Threads);
    with_room_for(elements->depth, [&] {
        const Spread spread = pick_spread(s.name(stage), *elements, spread_of(*elements, s.target()));
        const std::string way = pick(s.name(stage), "elements", {"tiles", "beside", "vectors"}, "tiles");
        if (way == "tiles" && takes_tiles(s, stage, *elements, spread.vector)) return;
        if (way != "vectors" && takes_beside(s, stage, *elements)) return;
        if (takes_vectors(s, stage, spread)) return;
        const int64_t threads = spread.vector * spread.steps == 1 ? spread.threads : Threads;
        tell_elements(s.name(stage), "vectors", {.threads = threads});
        spread_results(s, stage, threads);
    });
}

}  // namespace tw::schedules

#include "schedules/sorted_terms.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "dsl/simplify.h"
#include "schedules/choices.h"
#include "schedules/long_reductions.h"
#include "schedules/share_reduction.h"
#include "schedules/take_steps.h"

namespace tw::schedules {
namespace {

constexpr int64_t threads_wanted = 132 * 1024;  // half of those that an H200 holds
constexpr int64_t stored = 4;                   // f32 of a thread, at once: a warp's are 512 bytes side by side

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
int64_t power_below(int64_t value) {
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}
int64_t power_above(int64_t value) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

/// Vectors of a thread and threads along a row: many, unless fewer leave far fewer without a vector.
void divide_row(SortedThreads& shape, int64_t vectors) {
    constexpr int64_t most_parts = 4, least_parts = 2, most_lanes = 256, warp = 32;
    constexpr double by_far = 0.9;
    double fewest = 0;
    for (int64_t parts = most_parts; parts >= least_parts; --parts) {
        const int64_t tiles = divide_up(vectors, parts * most_lanes);
        const int64_t lanes = divide_up(divide_up(vectors, tiles * parts), warp) * warp;
        if (const auto all = static_cast<double>(tiles * parts * lanes); fewest == 0 || all < by_far * fewest) {
            fewest = all;
            shape.parts = parts;
            shape.lanes = lanes;
        }
    }
}

/// Threads of a block that has vectors of so many elements (docs/performance.md).
int64_t threads_of_vectors(int64_t width) { return width == 8 ? 128 : width > 1 ? 256 : 512; }

/// Loops of the terms, which are not those of data.
std::vector<Loop> term_loops(const Schedule& s, Stage stage) {
    std::vector<Loop> loops = s.all_loops(stage);
    loops.erase(loops.begin(), loops.begin() + static_cast<std::ptrdiff_t>(s.data_loops(stage).size()));
    return loops;
}

/// Blocks have a tile of a row each: threads along it, and those that share its terms.
void spread_rows(Schedule& s, Stage stage, const SortedThreads& shape) {
    std::vector<Loop> rows = s.data_loops(stage), terms = term_loops(s, stage);
    const Loop columns = rows.back();
    rows.pop_back();
    const Loop row = rows.size() > 1 ? s.fuse(rows, "row") : rows[0];
    auto [tile, in_tile] = s.split(columns, shape.lanes * shape.parts * shape.vector, Tail::Mask, {"tile", "in_tile"});
    auto [part, in_part] = s.split(in_tile, shape.lanes * shape.vector, {"part", "in_part"});
    auto [lane, element] = s.split(in_part, shape.vector, {"t", "element"});
    std::vector<Loop> order{row, tile}, threads{lane};
    if (shape.sharers > 1) {
        auto [step, share] = s.split(terms[0], shape.sharers, Tail::Mask, {"step", "share"});
        terms[0] = step;
        threads.insert(threads.begin(), share);
    }
    order.insert(order.end(), threads.begin(), threads.end());
    order.insert(order.end(), terms.begin(), terms.end());
    order.insert(order.end(), {part, element});
    s.order(order);
    s.bind(s.fuse(row, tile, "block"), grid.x);
    s.bind(threads, thread);
    s.unroll(part);
    if (shape.vector > 1) s.bind(element, vector);
}

/// Threads share the terms of an element, of such as have no neighbours in a row.
void share_elements_terms(Schedule& s, Stage stage, int64_t sharers) {
    constexpr int64_t threads_of_block = 256;
    std::vector<Loop> terms = term_loops(s, stage);
    const std::vector<Loop> elements = s.data_loops(stage);
    const Loop all = elements.size() > 1 ? s.fuse(elements, "element") : elements[0];
    auto [block, element] = s.split(all, threads_of_block / sharers, Tail::Mask, {"block", "result"});
    auto [step, share] = s.split(terms[0], sharers, Tail::Mask, {"step", "share"});
    terms[0] = step;
    std::vector<Loop> order{block, element, share};
    order.insert(order.end(), terms.begin(), terms.end());
    s.order(order);
    s.bind(block, grid.x);
    s.bind({element, share}, thread);
}

/// Vectors of all rows, so many a block.
void spread_vectors(Schedule& s, Stage stage, int64_t width, int64_t threads) {
    std::vector<Loop> order = s.data_loops(stage);
    const std::vector<Loop> terms = term_loops(s, stage);
    auto [part, element] = s.split(order.back(), width, {"part", "element"});
    order.back() = part;
    const std::vector<Loop> results = order;
    order.insert(order.end(), terms.begin(), terms.end());
    order.push_back(element);
    s.order(order);
    auto [block, inside] = s.split(s.fuse(results, "all"), threads, Tail::Mask, {"block", "result"});
    s.bind(block, grid.x);
    s.bind(inside, thread);
    s.bind(element, vector);
}

}  // namespace

SortedThreads sorted_threads(const ScatteredSizes& sizes) {
    constexpr int64_t wide = 256;  // vectors of a row
    constexpr int64_t many_terms = 16, terms_of_sharer = 8, most_sharers = 64;
    constexpr int64_t lanes_of_sectors = 16, threads_of_block = 256;  // 128 bytes of 16-bit elements side by side
    const int64_t vector = std::gcd(stored, std::max<int64_t>(sizes.width, 1)), vectors = sizes.width / vector;
    SortedThreads shape{.vector = vector};
    const int64_t terms = sizes.terms / std::max<int64_t>(sizes.rows, 1), threads = sizes.rows * vectors;
    if (terms >= many_terms && threads > 0 && threads < threads_wanted) {
        shape.sharers = power_below(std::min({terms / terms_of_sharer, 2 * threads_wanted / threads, most_sharers}));
        shape.lanes = std::min(std::max(threads_of_block / shape.sharers, lanes_of_sectors), power_above(vectors));
        if (shape.sharers > 1) return shape;
    }
    // Several vectors a thread leave too few threads for many terms: 192 rows of 853 took 0.039 ms so, for 0.029.
    const bool has_threads = terms < many_terms || threads >= 4 * threads_wanted;
    if (vectors >= wide && has_threads) {
        divide_row(shape, vectors);
        return shape;
    }
    constexpr int64_t most = 8;
    return {.vector = std::gcd(most, std::max<int64_t>(sizes.width, 1))};
}

double microseconds_to_sort(const ScatteredSizes& sizes) {
    // Measured on an H200; of what sort_terms of dsl/ makes of few terms, of small tables, and of others.
    constexpr int64_t few_terms = 1024, few_comparisons = 1 << 22, terms_of_a_block = 256, small_table = 4096;
    constexpr double of_few = 9, of_small = 9, of_kernels = 20, of_a_term = 2.6e-4, of_a_word = 4.5e-6;
    constexpr double of_a_block = 1e-3;  // that begins, of the sums, where it has little to store
    const SortedThreads shape = sorted_threads(sizes);
    const int64_t vectors = sizes.rows * sizes.width / shape.vector;
    const double begun =
        shape.lanes > 0 ? 0 : of_a_block * static_cast<double>(divide_up(vectors, threads_of_vectors(shape.vector)));
    const int64_t words = sizes.rows * divide_up(sizes.terms, terms_of_a_block);
    if (sizes.terms <= few_terms && sizes.terms * sizes.rows <= few_comparisons) return of_few + begun;
    if (words <= small_table) return of_small + begun;
    return of_kernels + of_a_term * static_cast<double>(sizes.terms) + of_a_word * static_cast<double>(words) / 2 +
           begun;
}

void spread_sorted(Schedule& s, Stage stage, const ScatteredSizes& sizes) {
    const bool has_columns = s.data_loops(stage).size() > 1 && as_constant(s.extent(s.data_loops(stage).back()));
    const bool has_elements = has_columns || s.data_loops(stage).size() == 1;
    SortedThreads shape = has_elements ? sorted_threads(sizes) : SortedThreads{};
    const std::string name = s.name(stage);
    std::vector<int64_t> widths;
    for (int64_t width : {8, 4, 2, 1})
        if (width == 1 || (has_columns && sizes.width % width == 0)) widths.push_back(width);
    shape.vector = pick(name, "vector", widths, shape.vector);
    const int64_t results = threads_of_vectors(shape.vector);
    if (has_columns && sizes.width > 0) {
        const bool in_rows = pick(name, "spread", {"rows", "vectors"}, shape.lanes > 0 ? "rows" : "vectors") == "rows";
        if (in_rows && shape.lanes == 0) shape.lanes = 128;
        if (in_rows) {
            shape.sharers = pick(name, "sharers", {1, 2, 4, 8, 16, 32, 64}, shape.sharers);
            shape.parts = pick(name, "parts", {1, 2, 3, 4}, shape.parts);
            constexpr int64_t most_threads = 1024;
            shape.lanes = std::min(shape.lanes, most_threads / shape.sharers);
            if (take_steps(s, stage, [&](Schedule& trial) { spread_rows(trial, stage, shape); })) return;
        }
        took(name, "spread", "vectors");
        took(name, "sharers", 1);
        took(name, "parts", 1);
        const int64_t threads = pick(name, "results", {64, 128, 256, 512}, results);
        if (shape.vector > 1 &&
            take_steps(s, stage, [&](Schedule& trial) { spread_vectors(trial, stage, shape.vector, threads); }))
            return;
    }
    if (has_elements && sizes.width == 1) {
        shape.sharers = pick(name, "sharers", {1, 2, 4, 8, 16, 32, 64}, shape.sharers);
        if (shape.sharers > 1 &&
            take_steps(s, stage, [&](Schedule& trial) { share_elements_terms(trial, stage, shape.sharers); }))
            return;
        took(name, "sharers", 1);
    }
    took(name, "vector", 1);
    spread_results(s, stage, results);
}

bool are_few_rows(const ScatteredSizes& sizes, Combine combine) {
    // Instructions of warps: of a term's 32 elements for each row and beside these, and of as many bytes on their way;
    // atomic updates take more than any of these.
    constexpr double of_a_row = 2, of_an_element = 4, of_memory = 14, of_sorting = 2.5e7;
    constexpr int64_t most_rows = 16, least_terms = 512;
    if (sizes.rows < 1 || sizes.rows > most_rows || sizes.terms < least_terms || sizes.width < 1) return false;
    if (combine == Combine::Atomic) return true;
    const double loads = static_cast<double>(sizes.terms) * static_cast<double>(sizes.width) / 32;
    const double each = of_a_row * static_cast<double>(sizes.rows) + of_an_element;
    return loads * (each - of_memory) < of_sorting;
}

void schedule_few_rows(Schedule& s, const Tensor& y, const Tensor& x, const ScatteredSizes& sizes, Combine combine) {
    constexpr int64_t threads_of_block = 128, most_lanes = 256, warp = 32, terms_for_a_row = 8;
    constexpr int64_t terms_at_once = 4;  // of a thread, which it loads before it adds the first
    const int64_t vector = std::gcd(stored, sizes.width), vectors = divide_up(sizes.width, vector);
    const int64_t tiles = divide_up(vectors, most_lanes);
    const int64_t lanes = vectors < warp ? power_above(vectors) : divide_up(divide_up(vectors, tiles), warp) * warp;
    const int64_t beside = std::max<int64_t>(threads_of_block / lanes, 1);
    // Parts are written and read again: few beside the terms that they are made of.
    const int64_t chunks = std::max<int64_t>(2 * threads_wanted / vectors, 1);
    const int64_t least = terms_for_a_row * sizes.rows;
    const int64_t chunk = divide_up(std::max(divide_up(sizes.terms, chunks), least), terms_at_once) * terms_at_once;
    auto [outer, inside] = s.split(s.reduce(y), chunk, Tail::Mask, {"chunk", "in_chunk"});
    const Stage parts = s.rfactor(y, outer, combine);
    const std::vector<Loop> data = s.data_loops(parts);  // chunk, row, column
    auto [block, chunk_in_block] = s.split(data[0], beside, Tail::Mask, {"block", "chunk_in_block"});
    auto [tile, in_tile] = s.split(data[2], lanes * vector, Tail::Mask, {"tile", "in_tile"});
    auto [lane, element] = s.split(in_tile, vector, {"t", "element"});
    auto [step, term] = s.split(s.reduce(parts), terms_at_once, {"step", "term"});
    s.order({block, tile, chunk_in_block, lane, step, term, data[1], element});
    s.bind(s.fuse(block, tile, "blocks"), grid.x);
    s.bind({chunk_in_block, lane}, thread);
    s.unroll(term);
    s.unroll(data[1]);
    if (vector > 1) s.bind(element, tw::vector);
    // More blocks side by side than the compiler would leave room for, as it loads far ahead.
    constexpr int64_t registers = 65536, beside_sums = 48, most_blocks = 8;
    const int64_t of_block = (sizes.rows * vector + beside_sums) * lanes * beside;
    s.occupancy(parts, static_cast<int>(std::clamp<int64_t>(registers / of_block, 1, most_blocks)));
    const Stage loaded = s.stage(parts, x, Memory::Registers, step);
    const std::vector<Loop> copied = s.data_loops(loaded);
    auto [of_thread, own] = s.split(copied.back(), vector, Tail::Mask, {"t", "element"});
    s.unroll(copied[0]);
    s.bind(of_thread, thread);
    if (vector > 1) s.bind(own, tw::vector);
    if (combine == Combine::Workspace) schedule_parts_of_columns(s, y, divide_up(sizes.terms, chunk));
}

}  // namespace tw::schedules

// The time of an f32 product on SIMT cores, from what bounds it.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "schedules/product_cycles.h"
#include "schedules/product_space.h"
#include "schedules/product_tiles.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr double clock_rate = 1.98e9;         // Hz
constexpr double dram_rate = 3.67e12;         // bytes a second
constexpr double l2_rate = 5.1e12;            // bytes a second, all multiprocessors together
constexpr double launch = 1.94e-6;            // seconds: a kernel's start, its first loads and its end
constexpr double next_launch = 2.3e-6;        // of a kernel that starts while the one before ends
constexpr double of_block = 0.118e-6;         // seconds of a multiprocessor, at least, to start a block
constexpr double load_latency = 0.79e-6;      // from a load in global memory to the value in shared memory
constexpr double register_latency = 0.6e-6;   // the same through registers, one step ahead whatever stages there are
constexpr double of_a_latency = 26;           // elements of a thread that are on their way there at once
constexpr double cycles_of_read = 2.1;        // of a scheduler's warp, for a read of shared memory
constexpr double cycles_of_single = 1;        // of a scheduler's warp, for each read more than those of 16 bytes
constexpr double across = 1.06;               // times as long: more columns than rows, of many sums of a thread
constexpr double cycles_of_step = 75;         // of a warp, for an iteration over k: addresses, the branch, barriers
constexpr double warps_that_hide = 1;         // of a scheduler: with no more, each waits for its own reads and sums
constexpr double alone = 0.1;                 // of its cycles: what a block waits for whose like no other hides
constexpr double cycles_of_line = 3.3;        // of a multiprocessor, for a line that a store touches
constexpr double bytes_on_way = 30.6 * 1024;  // to each multiprocessor, that make use of all of the bandwidth
constexpr double bytes_that_stay = 30e6;      // in the L2 cache, until a next kernel reads them
constexpr double uneven = 2;                  // times as much, more: copies whose threads divide by rows in each step
constexpr double schedulers = 4;
constexpr int64_t lanes = 32;

/// An operand's copies into shared memory.
struct Copies {
    OperandWay way;
    int64_t extent;  ///< rows or columns of the tile
    int64_t row;     ///< elements of the tile that lie side by side in memory
    int64_t width;   ///< of them that move at once
};

/// Of a multiprocessor, for an element that is copied: one alone needs an address and a mask of its own, and more where
/// rows neither are whole rounds of the block's threads nor share these evenly, as each step has other places in them
/// (pairs of elements were measured to cost no more so, unless a row has more of them than the block has threads).
double cycles_of_copy(const ProductTiles& t, const Copies& c) {
    const int64_t threads = threads_of(t), pieces = std::max<int64_t>(c.row / c.width, 1);
    const bool is_even = threads % pieces == 0 || pieces % threads == 0,
               waits_in_registers = t.stages < 3 || !c.way.asynchronous();
    const double more = waits_in_registers && !is_even && (c.width != 2 || threads < pieces) ? uneven : 0;
    return (1 + more) * (!c.way.transposed ? (c.width == 1 ? 0.11 : 0.055) : c.way.wide ? 0.137 : 0.2);
}

std::array<Copies, 2> copies_of(const ProductTiles& t, const ProductShape& s) {
    const OperandWays ways = ways_of(t, s);
    auto copies = [&](const OperandWay& way, int64_t extent, int64_t row) {
        return Copies{way, extent, way.transposed ? t.block_k : extent, way.wide ? 4 : std::gcd<int64_t>(row, 2)};
    };
    return {copies(ways.a, t.block_m, row_of_a(s)), copies(ways.b, t.block_n, row_of_b(s))};
}

/// Results of a block on their way.
struct Leaving {
    double lines;  ///< of 128 bytes that each store of a warp touches, one after another, together
    double bytes;  ///< of the sectors that they touch
};

/// Chunks that are wider than rows of c are aligned leave by several stores that touch the same sectors.
Leaving leaving_of(const ProductTiles& t, const ProductShape& s) {
    constexpr int64_t line = 128, sector = 32;
    const int64_t chunk = std::gcd(t.thread_n, t.chunk_n), width = std::gcd(chunk, s.n),
                  neighbours = t.block_n / t.thread_n, row = std::min(lanes, neighbours) * chunk * 4;
    const double rows = std::max(1.0, as_double(lanes) / as_double(neighbours)),
                 stores = as_double(divided(threads_of(t), lanes) * t.thread_m * t.thread_n / width);
    auto touched = [&](int64_t piece, double more) {
        const bool is_aligned = s.n * 4 % piece == 0 && (row % piece == 0 || row < piece);
        return rows * (as_double(divided(row, piece)) + (is_aligned ? 0 : more));
    };
    return {.lines = stores * touched(line, 0.5), .bytes = stores * touched(sector, 0.75) * as_double(sector)};
}

/// Bytes that a row of a tile touches over those that it has, where rows do not begin at sectors.
double touched(int64_t elements, int64_t row) {
    constexpr double more = 24;
    return row % 8 == 0 ? 1 : 1 + more / as_double(4 * elements);
}

/// Blocks that a multiprocessor runs side by side: those that were asked for, or more where registers are left.
int64_t side_by_side_of(const ProductTiles& t, const ProductShape& s, const Target& target) {
    const int64_t registers = std::min(rounded_up(registers_wanted(t, s), 8), registers_given(t, target)),
                  by_registers = target.registers / (registers * rounded_up(threads_of(t), 32));
    return std::min(most_blocks(t, target), std::max<int64_t>(t.blocks, by_registers));
}

/// Cycles of a scheduler, for a warp's step along k.
double cycles_of_warp(const ProductTiles& t) {
    constexpr int64_t many = 96, widest = 4;
    const int64_t sums = t.thread_m * t.thread_n, of_b = t.thread_n / std::gcd(t.thread_n, t.chunk_n),
                  reads = divided(t.thread_m, widest) + of_b, singles = of_b - divided(t.thread_n, widest);
    return (sums >= many && t.thread_n > t.thread_m ? across : 1) * as_double(sums) +
           cycles_of_read * as_double(reads) + cycles_of_single * as_double(singles) +
           cycles_of_step / as_double(t.block_k);
}

/// What does not depend on how many blocks run.
struct Block {
    double warps;   ///< of each scheduler: more than two of a block are dealt out to four
    double warp;    ///< cycles for a term of k
    double copies;  ///< cycles of a multiprocessor for a term of k
    double waits;   ///< seconds for a term of k
    double stored;  ///< seconds of a multiprocessor
};

/// How often a thread waits in a step, as it has no registers for more of what it loads: by 64 threads, 1 x 3151 x
/// 47584 took 3 microseconds for each 32 terms.
double turns_of(const ProductTiles& t, const Copies& a, const Copies& b) {
    double loads = 0;
    for (const Copies& each : {a, b})
        if (!each.way.asynchronous())
            loads += as_double(each.extent * t.block_k) / as_double(threads_of(t) * (each.way.wide ? 4 : 1));
    return std::max(1.0, loads / of_a_latency);
}

Block block_of(const ProductTiles& t, const ProductShape& s) {
    const auto [a, b] = copies_of(t, s);
    const bool is_early = a.way.asynchronous() && b.way.asynchronous();
    const double latency = is_early ? load_latency / std::max(t.stages - 1, 1) : register_latency * turns_of(t, a, b),
                 warps = as_double(divided(threads_of(t), lanes));
    return {.warps = warps <= 2 ? warps / schedulers : std::ceil(warps / schedulers),
            .warp = cycles_of_warp(t),
            .copies = as_double(a.extent) * cycles_of_copy(t, a) + as_double(b.extent) * cycles_of_copy(t, b),
            .waits = latency / as_double(t.block_k),
            .stored = cycles_of_line * leaving_of(t, s).lines / clock_rate};
}

/// Seconds of so many blocks that a multiprocessor runs side by side, for `terms` of k.
double seconds_of_round(const Block& block, int64_t count, double terms) {
    const double blocks = as_double(count), warps = std::max(1.0, block.warps * blocks),
                 busy = std::cbrt(warps * warps * warps + warps_that_hide * warps_that_hide * warps_that_hide),
                 waiting = 1 + alone * (1 / blocks - 0.5),  // at barriers and for what is read; constants are of pairs
        cycles = waiting * (busy * block.warp + blocks * block.copies);
    return std::max(blocks * of_block, terms * std::max(cycles / clock_rate, block.waits) + blocks * block.stored);
}

/// Of blocks one after another, so many side by side.
double seconds_of_blocks(const Block& block, int64_t all, int64_t side_by_side, double terms, int64_t multiprocessors) {
    const int64_t wave = multiprocessors * side_by_side, rounds = all / wave, rest = all % wave;
    double seconds = as_double(rounds) * seconds_of_round(block, side_by_side, terms);
    if (rest) seconds += seconds_of_round(block, divided(rest, multiprocessors), terms);
    return seconds;
}

double rate_of(double bytes) { return bytes < bytes_that_stay ? l2_rate : dram_rate; }

}  // namespace

double seconds_of(const ProductTiles& t, const ProductShape& s, const Target& target) {
    const int64_t side_by_side = side_by_side_of(t, s, target), multiprocessors = std::max(target.multiprocessors, 1);
    if (side_by_side < 1) return INFINITY;
    const int64_t rows = divided(s.m, t.block_m), columns = divided(s.n, t.block_n),
                  all_steps = std::max<int64_t>(divided(s.k, t.block_k), 1), steps = divided(all_steps, t.split_k),
                  parts = divided(all_steps, steps), blocks = rows * columns * parts * s.batch;
    const double computing =
        seconds_of_blocks(block_of(t, s), blocks, side_by_side, as_double(steps * t.block_k), multiprocessors);
    // All terms of a row, if a block takes them at once, are neighbours of the next row's.
    auto touched_of = [&](int64_t elements, int64_t row, bool is_term) {
        return is_term || s.k > t.block_k ? touched(elements, row) : 1;
    };
    const double m = as_double(s.m), n = as_double(s.n), k = as_double(s.k), batch = as_double(s.batch),
                 results = 4 * m * n * batch,
                 stored = results * (parts > 1 ? as_double(parts)
                                     : s.add_c ? 2
                                               : 1),
                 operands = 4 * k * (m + n) * batch,
                 touched_a = touched_of(s.transpose_a ? t.block_m : t.block_k, row_of_a(s), s.transpose_a),
                 touched_b = touched_of(s.transpose_b ? t.block_k : t.block_n, row_of_b(s), !s.transpose_b),
                 through_l2 = 4 * k * (m * as_double(columns) * touched_a + n * as_double(rows) * touched_b) * batch;
    const double on_way = as_double(std::min(side_by_side, divided(blocks, multiprocessors)) * t.block_k *
                                    (t.block_m + t.block_n) * 4 * std::max(t.stages - 1, 1));
    const double reading = operands / std::sqrt(std::min(1.0, on_way / bytes_on_way));
    const double moving = std::max((reading + stored) / rate_of(operands + stored),
                                   (through_l2 + as_double(blocks) * leaving_of(t, s).bytes) / l2_rate);
    const double seconds = launch + together(computing, moving);
    if (parts < 2) return seconds;
    const double summed = results * (as_double(parts) + (s.add_c ? 2 : 1));
    return seconds + next_launch + summed / rate_of(summed);
}

}  // namespace tw::schedules

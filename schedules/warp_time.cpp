// The time of a product by tiles of warps, from what bounds it; the constants are fitted to two thousand tilings of
// drawn products on an H200. See docs/schedules.md.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "schedules/product_cycles.h"
#include "schedules/tensor_product_space.h"
#include "schedules/warp_space.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr double lanes = 32, sector_bytes = 32;
constexpr int64_t sums_bytes = 4;

// Of all multiprocessors together, a cycle.
constexpr double arriving_bytes = 3333, bytes_of_memory = 2200, cache_holds = 94e6;
constexpr double begins = 0.49;  // blocks: as in codegen/cost/device_speeds.h
// Of one multiprocessor.
constexpr double read_bytes = 109;    // of shared memory, by warps
constexpr double least_warps = 2.55;  // beside which half of the multiplications are reached
constexpr double launch = 3250, between_parts = 1850;

/// The product as the kernel reads it: rows of one expert are a matrix of a batch, copied rows are whole pieces.
struct Reading {
    double m, n, k, batch, bytes, matrices_b;
    bool across_a, across_b;  ///< whose terms do not lie side by side
    int64_t row_a, row_b;     ///< bytes side by side
};

Reading reading_of(const TensorProductShape& s) {
    const int64_t bytes = bytes_of(s.operand), m = s.experts ? rows_of_block : s.m,
                  batch = s.experts ? divided(s.m, rows_of_block) : std::max<int64_t>(s.batch, 1);
    Reading r{as_double(m),
              as_double(s.n),
              as_double(s.k),
              as_double(batch),
              as_double(bytes),
              as_double(s.experts ? std::min(s.experts, batch) : batch),
              s.transpose_a,
              !s.transpose_b,
              (s.transpose_a ? m : s.k) * bytes,
              (s.transpose_b ? s.k : s.n) * bytes};
    if (!s.copy_operands) return r;
    for (int64_t* row : {&r.row_a, &r.row_b}) *row = rounded_up(*row, piece_bytes);
    if (bytes != 2) r.across_a = r.across_b = false;
    return r;
}

/// What a byte of an operand costs by the width of the copies that bring it.
struct Copying {
    double shared;    ///< cycles of a multiprocessor
    double own;       ///< of the warp that asks
    bool is_waiting;  ///< through registers, as no asynchronous copy is so narrow
    bool is_cached;   ///< comes through the first cache, but for bytes one by one, of which too little is known
};
Copying copying_of(int64_t row, int64_t element) {
    const int64_t width = std::gcd(piece_bytes, row);
    if (width >= 16) return {10.9 / (16 * lanes), 8.2 / (16 * lanes), false, false};
    if (width >= 8) return {13.3 / (8 * lanes), 38.3 / (8 * lanes), false, true};
    if (width >= 4 && element < 4) return {8.8 / (4 * lanes), 30.7 / (4 * lanes), false, true};
    const double shared = element == 4 ? 9 : element == 2 ? 4.9 : 1.2;
    return {shared / (as_double(element) * lanes), 8.6 / (as_double(element) * lanes), true, element > 1};
}

/// Pieces of rows that do not begin at sectors touch more of these.
double touched(double piece, int64_t row, double more) {
    return row % 32 == 0 ? 1 : (piece + more * sector_bytes) / piece;
}

/// What is left of a multiprocessor's first cache beside so much shared memory, which it gives to blocks in such sizes.
double bytes_of_first_cache(double shared) {
    constexpr double kilobyte = 1024, together = 256;
    for (double size : {8, 16, 32, 64, 100, 132, 164, 196})
        if (shared <= size * kilobyte) return (together - size) * kilobyte;
    return (together - 228) * kilobyte;
}

/// Whether the first cache, through which copies of less than 16 bytes come, holds the line in which each row's piece
/// of a step ends until the next step's begins there. 64x6400x3590: 64x256x64 in four stages 0.0285 ms, in five 0.0387.
bool keeps_lines(const TensorTiles& t, const TensorProductShape& shape, const Reading& r, double blocks) {
    constexpr double line = 128, of_driver = 1024;
    const int64_t element = bytes_of(shape.operand);
    double rows = 0;
    if (copying_of(r.row_a, element).is_cached) rows += as_double(t.block_b * (r.across_a ? t.block_k : t.block_m));
    if (copying_of(r.row_b, element).is_cached) rows += as_double(t.block_b * (r.across_b ? t.block_k : t.block_n));
    const double shared = as_double(shared_bytes_of(t, shape)) + of_driver;
    return blocks * rows * line <= bytes_of_first_cache(blocks * shared);
}

/// Pairs that a multiprocessor multiplies in a cycle.
double multiplications(Type operand) {
    if (operand == e4m3 || operand == e5m2) return 387;
    return bytes_of(operand) == 4 ? 693 : bytes_of(operand) == 1 ? 1960 : 1170;
}

/// Cycles of warps for each element that they prepare: fp8 is converted, bytes that lie across are put side by side.
double prepared(Type operand, bool across) {
    if (operand == e4m3 || operand == e5m2) return 0.0676;
    return bytes_of(operand) == 1 && across ? 0.0198 : 0;
}

/// Blocks that a multiprocessor holds: registers of the sums and of what they are made of, and shared memory.
double blocks_side_by_side(const TensorTiles& t, const TensorProductShape& shape, const Target& target, double warps) {
    constexpr double registers_of_all = 65536, most_registers = 255, most_warps = 64, most_blocks = 32;
    const double sums = as_double(t.warp_b * t.warp_m * t.warp_n) / lanes,
                 registers = std::min(most_registers,
                                      std::ceil((46 + sums + 1.5 * as_double(t.warp_m + t.warp_n) / 8) / 8) * 8);
    const double by_registers = std::floor(registers_of_all / (registers * lanes * warps)),
                 by_memory = as_double(target.shared_bytes / std::max<int64_t>(shared_bytes_of(t, shape), 1));
    return std::max(1.0, std::min({by_registers, by_memory, std::floor(most_warps / warps), most_blocks}));
}

/// Of a result, or of parts of its sums.
struct Leaving {
    double bytes;  ///< of a sum
    double rate;   ///< bytes a cycle and multiprocessor
    double waste;  ///< sectors touched over sectors filled
};

Leaving leaving_of(const TensorTiles& t, const TensorProductShape& shape, double columns) {
    const double share = shape.activation == Activation::SwiGlu ? 0.5 : 1;
    const int64_t bytes = t.split_k > 1 ? sums_bytes : bytes_of(shape.result),
                  row = (shape.activation == Activation::SwiGlu ? shape.n / 2 : shape.n) * bytes,
                  width = std::gcd(piece_bytes, row);
    if (t.stage_result) {
        const double rate = width >= 16 ? 25.1 : 13.6 + 0.36 * as_double(width);
        return {as_double(bytes) * share, rate,
                t.block_b > 1 ? 1 : touched(columns * share * as_double(bytes), row, 3.26)};
    }
    const double rate = bytes < 4 ? (width >= 4 ? 5.93 : 2.97) : (width >= 8 ? 33.1 : 16.6);
    return {as_double(bytes) * share, rate, 1};
}

/// Bytes of operands that come from memory, some again where the cache loses what is shared by blocks that do not run
/// at the same time.
double bytes_read(const TensorTiles& t, const Reading& r, double tiles_m, double tiles_n, double at_once) {
    const double once = (r.m * r.batch + r.n * r.matrices_b) * r.k * r.bytes;
    if (t.block_b > 1) return once;
    const double group = as_double(largest_divisor(static_cast<int64_t>(tiles_m), t.raster_group)),
                 rows = std::min(tiles_m, std::max(group, at_once / tiles_n)),
                 columns = std::min(tiles_n, std::max(1.0, at_once / group)),
                 rounds = std::max(1.0, tiles_m * tiles_n * r.batch / at_once);
    const double all = rounds * (rows * as_double(t.block_m) + columns * as_double(t.block_n)) * r.k * r.bytes;
    const double lost = std::clamp(once / cache_holds - 0.7, 0.0, 1.0);
    return once + lost * std::max(0.0, all - once);
}

}  // namespace

/// At once, in rounds of the blocks that a multiprocessor holds: multiplications; fragments that warps read from shared
/// memory, and prepare; requests of copies by their width; what a block waits for copies, less with more stages; and
/// what each of its warps does one after another in a step. Beside these what all multiprocessors get from the second
/// level of the cache, and from memory.
double predicted_cycles(const TensorTiles& t, const TensorProductShape& shape, const Target& target) {
    if (t.split_k > 1 && shape.activation == Activation::SwiGlu)
        return predicted_cycles(t, shape_of_parts(shape), target) + gating_cycles(shape);
    const Reading r = reading_of(shape);
    const double block_m = as_double(t.block_m), block_n = as_double(t.block_n), block_k = as_double(t.block_k),
                 warp_m = as_double(t.warp_m), warp_n = as_double(t.warp_n), own = as_double(t.warp_b),
                 matrices = as_double(t.block_b), warps = block_m / warp_m * (block_n / warp_n) * (matrices / own),
                 multiprocessors = std::max(target.multiprocessors, 1);
    const double steps = as_double(divided(divided(shape.k, t.block_k), t.split_k)),
                 terms = std::min(steps * block_k, std::max(r.k, 16 / r.bytes)), area = matrices * block_m * block_n;
    const double tiles_m = std::max(1.0, std::ceil(r.m / block_m)), tiles_n = std::max(1.0, std::ceil(r.n / block_n)),
                 parts = as_double(t.split_k), all = tiles_m * tiles_n * std::ceil(r.batch / matrices) * parts,
                 rows = std::min(block_m, r.m / tiles_m), columns = std::min(block_n, r.n / tiles_n);
    const int64_t element = bytes_of(shape.operand);
    const Copying a = copying_of(r.row_a, element), b = copying_of(r.row_b, element);
    const Leaving out = leaving_of(t, shape, columns);

    const double of_row = own * (44.2 / 32 * block_k * r.bytes + 178),
                 asked = matrices * (rows * a.own + columns * b.own) / warps,
                 chain = steps * (of_row + asked * block_k * r.bytes),
                 latency = steps * (a.is_waiting || b.is_waiting ? 1150 : 1320 / std::max(1.0, t.stages - 0.866));
    auto round = [&](double blocks) {
        const double of_all = blocks * warps,
                     multiply =
                         blocks * area * terms * (of_all + least_warps) / (of_all * multiplications(shape.operand)),
                     read = blocks * area * terms * r.bytes * (1 / warp_n + 1 / warp_m) / read_bytes,
                     prepare =
                         blocks * area * terms *
                         (prepared(shape.operand, r.across_a) / warp_n + prepared(shape.operand, r.across_b) / warp_m),
                     copy = blocks * matrices * terms * r.bytes * (rows * a.shared + columns * b.shared);
        const double longest = together(multiply, read, copy, latency, prepare, chain),
                     sum = multiply + read + copy + latency + prepare + chain;
        const double end =
            blocks * matrices * rows * columns * (out.bytes * out.waste / out.rate + 0.0238 * instructions_behind(shape));
        // Some of what is shorter hides nowhere; blocks side by side hide each other's ends.
        return longest + 0.094 * (sum - longest) + 67 + end * (1 - 0.63 * (1 - 1 / blocks));
    };
    const double held = blocks_side_by_side(t, shape, target, warps), each = std::ceil(all / multiprocessors),
                 rounds = std::floor(each / held), rest = each - rounds * held;
    const double busy = (rounds > 0 ? rounds * round(held) : 0) + (rest > 0 ? round(rest) : 0);

    auto piece = [&](bool across, double extent) { return across ? extent * r.bytes : block_k * r.bytes; };
    const bool keeps = keeps_lines(t, shape, r, held);
    auto more = [&](const Copying& by) { return !by.is_cached ? 1.35 : keeps ? 0.6 : 2.7; };  // sectors
    const bool are_whole = t.block_b > 1 && t.block_k >= shape.k;  // matrices, one behind the other
    auto sectors = [&](double extent, bool across, int64_t row, const Copying& by) {
        return are_whole ? 1 : touched(piece(across, extent), row, more(by));
    };
    const double loaded =
        matrices * terms * r.bytes *
        (rows * sectors(rows, r.across_a, r.row_a, a) + columns * sectors(columns, r.across_b, r.row_b, b));
    const double cached = all * (loaded + matrices * rows * columns * out.bytes * out.waste) / arriving_bytes;
    const double at_once = std::max(1.0, std::min(all, multiprocessors * held) / parts);
    const double of_result = bytes_of(shape.result) * (shape.activation == Activation::SwiGlu ? 0.5 : 1),
                 result = r.batch * r.m * r.n * of_result;
    const double memory = (bytes_read(t, r, tiles_m, tiles_n, at_once) + result) / bytes_of_memory;
    const double cycles = together(busy, cached, memory, all / begins) + launch + copy_cycles(shape);
    if (t.split_k == 1) return cycles;
    return cycles + between_parts + added_cycles(r.m * r.n * r.batch * parts);
}

}  // namespace tw::schedules

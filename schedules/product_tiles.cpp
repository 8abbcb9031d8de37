#include "schedules/product_tiles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <regex>
#include <vector>

#include <fmt/format.h>

namespace tw::schedules {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- the model: an H200 ---------------------------------------------------------------------------------------------

constexpr double clock_rate = 1.98e9;           // Hz
constexpr double dram_rate = 3.6e12;            // bytes a second
constexpr double l2_rate = 5.0e12;              // bytes a second, all multiprocessors together
constexpr double launch = 2.5e-6;               // seconds: a kernel's start, its first loads and its end
constexpr double next_launch = 2.0e-6;          // of a kernel that starts while the one before ends
constexpr double load_latency = 0.6e-6;         // from a load in global memory to the value in shared memory
constexpr double cycles_of_shared_word = 0.6;   // of a scheduler's warp, for 32 threads' words, beside multiply-adds
constexpr double cycles_of_read = 0.3;          // beside its words
constexpr double cycles_of_step = 30;           // of a warp, for an iteration over k: addresses, the branch
constexpr double cycles_of_barrier = 80;        // of an iteration over k, unless another block fills them
constexpr double waiting_of_warp = 0.4;         // of its time, a scheduler's only warp more than the multiply-adds take
constexpr double fitted_share = 1.04;           // such that two blocks of 128x128, 8x16 a thread, take what they do
constexpr double bytes_on_way = 40 * 1024;      // to each multiprocessor, that make use of all of the bandwidth
constexpr double beginning = 0.5e-6;            // of a block: its first loads
constexpr double bytes_stored_a_second = 60e9;  // by a multiprocessor, while others of its blocks compute
constexpr double bytes_that_stay = 30e6;        // in the L2 cache, until a next kernel reads them

/// How an operand comes into shared memory.
struct Way {
    bool wide;        ///< 16 bytes at once
    bool transposed;  ///< stored with its neighbours in different rows

    bool asynchronous() const { return wide && !transposed; }
    /// Of a multiprocessor, for an element.
    double cycles() const {
        if (wide) return transposed ? 0.032 : 0.018;
        return transposed ? 0.07 : 0.06;
    }
};

struct Ways {
    Way a, b;
};

Ways ways_of(const ProductTiles& t, const ProductShape& s) {
    auto wide = [&](int64_t row, int64_t stride, int64_t tile) {
        return row % 4 == 0 && stride % 4 == 0 && tile % 4 == 0;
    };
    Ways ways{};
    ways.a = s.transpose_a ? Way{wide(s.m, s.a_stride, t.block_m), false} : Way{wide(s.k, s.a_stride, t.block_k), true};
    ways.b = s.transpose_b ? Way{wide(s.k, s.b_stride, t.block_k), true} : Way{wide(s.n, s.b_stride, t.block_n), false};
    return ways;
}

int64_t threads_of(const ProductTiles& t) { return t.block_m / t.thread_m * (t.block_n / t.thread_n); }

/// An estimate of a thread's registers: sums, operands of two steps, what is on its way, and addresses.
int64_t registers_of(const ProductTiles& t, const Ways& ways) {
    auto waiting = [&](const Way& way, int64_t extent) {
        return (t.stages > 2 && way.asynchronous()) || t.stages < 2 ? 0 : ceil_div(extent * t.block_k, threads_of(t));
    };
    const int64_t used = t.thread_m * t.thread_n + (t.thread_m + t.thread_n) * 7 / 4 + waiting(ways.a, t.block_m) +
                         waiting(ways.b, t.block_n) + 30;
    return ceil_div(used, 8) * 8;
}

int64_t resident_blocks(const ProductTiles& t, const Ways& ways, const Target& target) {
    const int64_t threads = ceil_div(threads_of(t), 32) * 32, registers = registers_of(t, ways);
    const int64_t shared = 4 * t.stages * t.block_k * (t.block_m + t.block_n + 4) + 1024;
    if (registers > target.max_registers_per_thread || shared > target.shared_bytes) return 0;
    return std::min({target.registers / (registers * threads),
                     target.shared_bytes_per_multiprocessor / std::max<int64_t>(shared, 1),
                     int64_t{target.threads_per_multiprocessor} / threads, int64_t{target.blocks_per_multiprocessor}});
}

/// Cycles of a scheduler, for a warp's step along k.
double cycles_of_warp(const ProductTiles& t) {
    auto reads = [](int64_t elements) { return static_cast<double>(ceil_div(elements, 4)); };
    const auto m = static_cast<double>(t.thread_m), n = static_cast<double>(t.thread_n);
    return m * n + cycles_of_shared_word * (m + n) + cycles_of_read * (reads(t.thread_m) + reads(t.thread_n)) +
           cycles_of_step / static_cast<double>(t.block_k);
}

/// Seconds of `blocks` blocks that a multiprocessor runs side by side, for `terms` of k.
double seconds_of_round(const ProductTiles& t, const Ways& ways, int64_t blocks, double terms) {
    const double warps = std::ceil(static_cast<double>(threads_of(t)) / 32), side_by_side = static_cast<double>(blocks);
    const double busy = std::ceil(warps * side_by_side / 4), warp = cycles_of_warp(t);
    const double share = std::min(1.0, fitted_share / (1 + waiting_of_warp / busy));
    const double copies =
        static_cast<double>(t.block_m) * ways.a.cycles() + static_cast<double>(t.block_n) * ways.b.cycles();
    const double cycles =
        busy * warp / share + side_by_side * copies + cycles_of_barrier / side_by_side / static_cast<double>(t.block_k);
    const double ahead = t.stages > 2 ? t.stages - 1 : 1;
    const double waits = load_latency / ahead / static_cast<double>(t.block_k);
    const double stored = 4.0 * static_cast<double>(t.block_m * t.block_n * blocks) / bytes_stored_a_second;
    return beginning + terms * std::max(cycles / clock_rate, waits) + stored;
}

double rate_of(double bytes) { return bytes < bytes_that_stay ? l2_rate : dram_rate; }

double bytes_of_results(const ProductShape& s) {
    return 4.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.batch);
}

double seconds_of_sum(const ProductTiles& t, const ProductShape& s) {
    if (t.split_k < 2) return 0;
    const double bytes = bytes_of_results(s) * (static_cast<double>(t.split_k) + (s.add_c ? 2 : 1));
    return next_launch + bytes / rate_of(bytes);
}

}  // namespace

std::string tiling_text(const ProductTiles& t) {
    return fmt::format("{}x{}x{}t{}x{}s{}", t.block_m, t.block_n, t.block_k, t.thread_m, t.thread_n, t.stages) +
           (t.split_k > 1 ? fmt::format("p{}", t.split_k) : "");
}

std::optional<ProductTiles> parse_product_tiles(const std::string& text) {
    static const std::regex form(
        "([1-9][0-9]{0,3})x([1-9][0-9]{0,3})x([1-9][0-9]{0,2})t([1-9][0-9]?)x([1-9][0-9]?)s([1-9])(p([1-9][0-9]{0,3}))"
        "?");
    std::smatch match;
    if (!std::regex_match(text, match, form)) return {};
    ProductTiles tiles{.block_m = std::stoll(match[1]),
                       .block_n = std::stoll(match[2]),
                       .block_k = std::stoll(match[3]),
                       .thread_m = std::stoll(match[4]),
                       .thread_n = std::stoll(match[5]),
                       .stages = std::stoi(match[6]),
                       .unroll_k = true};
    if (match[8].matched) tiles.split_k = std::stoll(match[8]);
    const bool divide = tiles.block_m % tiles.thread_m == 0 && tiles.block_n % tiles.thread_n == 0;
    if (!divide || threads_of(tiles) > 1024) return {};
    return tiles;
}

double seconds_of(const ProductTiles& t, const ProductShape& s, const Target& target) {
    const Ways ways = ways_of(t, s);
    const int64_t side_by_side = resident_blocks(t, ways, target);
    if (side_by_side < 1) return INFINITY;
    const int64_t multiprocessors = std::max(target.multiprocessors, 1), rows = ceil_div(s.m, t.block_m),
                  columns = ceil_div(s.n, t.block_n);
    const int64_t all_steps = std::max<int64_t>(ceil_div(s.k, t.block_k), 1), steps = ceil_div(all_steps, t.split_k),
                  parts = ceil_div(all_steps, steps);
    const int64_t blocks = rows * columns * parts * s.batch, wave = multiprocessors * side_by_side;
    const auto terms = static_cast<double>(steps * t.block_k);
    double computing = static_cast<double>(blocks / wave) * seconds_of_round(t, ways, side_by_side, terms);
    if (blocks % wave) computing += seconds_of_round(t, ways, ceil_div(blocks % wave, multiprocessors), terms);

    const double m = static_cast<double>(s.m), n = static_cast<double>(s.n), k = static_cast<double>(s.k);
    const double stored = bytes_of_results(s) * (parts > 1 ? static_cast<double>(parts) : s.add_c ? 2 : 1);
    // A thread's neighbours leave together where rows allow it, else one by one, between those of other threads.
    const double scattered = s.n % 4 ? static_cast<double>(std::min<int64_t>(t.thread_n, 4)) : 1;
    const double operands = 4 * k * (m + n) * static_cast<double>(s.batch);
    const double through_l2 =
        static_cast<double>(s.batch) * 4 * k * (m * static_cast<double>(columns) + n * static_cast<double>(rows));
    const double on_way = static_cast<double>(std::min(side_by_side, ceil_div(blocks, multiprocessors)) * t.block_k *
                                              (t.block_m + t.block_n) * 4 * std::max(t.stages - 1, 1));
    const double reading = operands / std::sqrt(std::min(1.0, on_way / bytes_on_way));
    const double moving =
        std::max((reading + stored) / rate_of(operands + stored), (through_l2 + stored * scattered) / l2_rate);
    return launch + std::pow(std::pow(computing, 4) + std::pow(moving, 4), 0.25) + seconds_of_sum(t, s);
}

namespace {

constexpr std::array<std::pair<int64_t, int64_t>, 18> thread_tiles = {{{8, 16},
                                                                       {16, 8},
                                                                       {8, 12},
                                                                       {12, 8},
                                                                       {8, 8},
                                                                       {8, 4},
                                                                       {4, 8},
                                                                       {4, 4},
                                                                       {4, 2},
                                                                       {2, 4},
                                                                       {8, 2},
                                                                       {2, 8},
                                                                       {8, 1},
                                                                       {1, 8},
                                                                       {4, 1},
                                                                       {1, 4},
                                                                       {2, 1},
                                                                       {1, 2}}};
constexpr std::array<int64_t, 17> thread_counts = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 16, 20, 24, 32, 64, 128};
constexpr std::array<int64_t, 18> part_counts = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 132, 264};
constexpr int64_t longest_body = 1024;  // multiply-adds of a thread in more than 16 steps of k: what compiles quickly
constexpr int64_t shortest_part = 64;   // of k
constexpr double worth_it = 0.98;       // of the time: else tiles that come first stay

/// Whether less than one thread's share of the tile, and less than half of a thread's, lies outside of the extent.
bool fits(int64_t block, int64_t per_thread, int64_t extent) {
    return block < extent + per_thread && (per_thread == 1 || per_thread / 2 < extent);
}

/// Many sums leave registers for what waits to be stored in shared memory, in one iteration, not for more addresses.
int stages_of(const ProductTiles& t, const ProductShape& s) {
    const Ways ways = ways_of(t, s);
    if (t.thread_m * t.thread_n >= 64) return ways.a.asynchronous() && ways.b.asynchronous() ? 3 : 2;
    return t.block_k > 16 ? 3 : 4;
}

/// Tiles of a thread's, without the parts of k.
std::vector<ProductTiles> tiles_of_thread(int64_t thread_m, int64_t thread_n, const ProductShape& s) {
    std::vector<ProductTiles> all;
    for (int64_t along_m : thread_counts)
        for (int64_t along_n : thread_counts) {
            const int64_t threads = along_m * along_n;
            if (threads < 64 || threads > 256 || threads % 32) continue;
            const int64_t block_m = along_m * thread_m, block_n = along_n * thread_n;
            if (!fits(block_m, thread_m, s.m) || !fits(block_n, thread_n, s.n)) continue;
            for (int64_t block_k : {32, 16}) {
                if (block_k > 16 && s.k < 512) continue;
                const int64_t terms = std::clamp<int64_t>(s.k, 1, block_k);
                if (terms > 16 && terms * thread_m * thread_n > longest_body) continue;
                all.push_back({.block_m = block_m,
                               .block_n = block_n,
                               .block_k = terms,
                               .thread_m = thread_m,
                               .thread_n = thread_n,
                               .unroll_k = true});
                all.back().stages = s.k > terms ? stages_of(all.back(), s) : 1;
            }
        }
    return all;
}

}  // namespace

ProductTiles product_tiles(const ProductShape& shape, const Target& target, int64_t most_sums) {
    const int64_t terms = std::clamp<int64_t>(shape.k, 1, 16);
    std::vector<ProductTiles> all{{.block_m = 16, .block_n = 16, .block_k = terms, .thread_m = 1, .thread_n = 1}};
    for (auto [thread_m, thread_n] : thread_tiles) {
        if (thread_m * thread_n > most_sums) continue;
        const std::vector<ProductTiles> tiles = tiles_of_thread(thread_m, thread_n, shape);
        all.insert(all.end(), tiles.begin(), tiles.end());
    }
    ProductTiles best = all[0];
    double least = INFINITY;
    for (ProductTiles tiles : all)
        for (int64_t parts : part_counts) {
            if (parts > 1 && (shape.batch > 1 || shape.k / parts < shortest_part)) break;
            tiles.split_k = parts;
            const double seconds = seconds_of(tiles, shape, target);
            if (seconds >= worth_it * least) continue;
            least = seconds;
            best = tiles;
        }
    return best;
}

}  // namespace tw::schedules

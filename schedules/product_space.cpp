#include "schedules/product_space.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "dsl/registers_given.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

using std::pair;
constexpr std::array<pair<int64_t, int64_t>, 22> thread_tiles = {
    {{8, 16}, {16, 8}, {8, 12}, {12, 8}, {8, 8},  {16, 4}, {4, 16}, {8, 4}, {4, 8}, {4, 4}, {4, 2},
     {2, 4},  {8, 2},  {2, 8},  {2, 2},  {16, 1}, {8, 1},  {1, 8},  {4, 1}, {1, 4}, {2, 1}, {1, 2}}};
constexpr std::array<int64_t, 18> thread_counts = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 16, 20, 24, 32, 64, 128, 256};
constexpr std::array<int64_t, 18> part_counts = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 132, 264};
constexpr int64_t longest_body = 1024;   // multiply-adds of a thread in more than 16 steps of k: what compiles quickly
constexpr int64_t shortest_part = 64;    // of k
constexpr int64_t longest_part = 12288;  // of k: the more terms are added one by one, the more they err
constexpr int64_t long_sum = 512;        // whose steps may have more terms whatever way they come
constexpr int64_t lanes = 32, bytes = 4;

/// Whether less than one thread's share of the tile, and less than half of a thread's, lies outside of the extent.
bool fits(int64_t block, int64_t per_thread, int64_t extent) {
    return block < extent + per_thread && (per_thread == 1 || per_thread / 2 < extent);
}

/// Many sums leave registers for what waits to be stored in shared memory, in one iteration, not for more addresses.
int stages_of(const ProductTiles& t, const ProductShape& s) {
    if (s.k <= t.block_k) return 1;
    const OperandWays ways = ways_of(t, s);
    if (t.thread_m * t.thread_n >= 64) return ways.a.asynchronous() && ways.b.asynchronous() ? 3 : 2;
    return t.block_k > 16 ? 3 : 4;
}

/// Of a tile's columns: as many as 16 bytes hold, and where rows are not aligned to these, as many as they allow.
std::vector<int64_t> chunks_of(int64_t thread_n, const ProductShape& s) {
    const int64_t aligned = std::gcd<int64_t>(s.n, 4);
    if (aligned == 4 || thread_n <= aligned) return {4};
    return {4, aligned};
}

bool is_asynchronous(const ProductTiles& t, const ProductShape& s) {
    const OperandWays ways = ways_of(t, s);
    return ways.a.asynchronous() && ways.b.asynchronous();
}

/// Terms of a step. What goes through registers waits less often with more of them.
std::set<int64_t> steps_of(int64_t sums, const ProductShape& s) {
    std::set<int64_t> steps{std::clamp<int64_t>(s.k, 1, 16)};
    if (s.k > 16 && s.k < 128 && rounded_up(s.k, 8) < rounded_up(s.k, 16)) steps.insert(8);
    if (s.k > 16 && (s.k <= 32 || s.k >= 128) && std::min<int64_t>(s.k, 32) * sums <= longest_body)
        steps.insert(std::min<int64_t>(s.k, 32));
    return steps;
}

constexpr int64_t most_matrices = 65535;  // of a batch, or parts of such: grid.z

/// With so many blocks as registers and the grid leave side by side, and with parts of k.
void add_parts(std::vector<ProductTiles>& space, ProductTiles t, const ProductShape& s, const Target& target) {
    const int64_t wanted = registers_wanted(t, s), multiprocessors = std::max(target.multiprocessors, 1),
                  tiles = divided(s.m, t.block_m) * divided(s.n, t.block_n) * s.batch;
    t.blocks = static_cast<int>(most_blocks(t, target));
    while (t.blocks > 0 && registers_given(t, target) < wanted) --t.blocks;
    if (t.blocks < 1) return;
    const int64_t most = t.blocks;
    const bool may_have_parts = s.has_parts;
    for (int64_t parts : part_counts) {
        if (parts > 1 && (!may_have_parts || s.k / parts < shortest_part || s.batch * parts > most_matrices)) break;
        if (may_have_parts && divided(s.k, parts) > longest_part && parts < part_counts.back()) continue;
        t.split_k = parts;
        t.blocks = static_cast<int>(std::min(most, divided(tiles * parts, multiprocessors)));
        space.push_back(t);
    }
}

}  // namespace

int64_t row_of_a(const ProductShape& s) { return s.a_row ? s.a_row : s.transpose_a ? s.m : s.k; }
int64_t row_of_b(const ProductShape& s) { return s.b_row ? s.b_row : s.transpose_b ? s.k : s.n; }

OperandWays ways_of(const ProductTiles& t, const ProductShape& s) {
    auto way = [&](int64_t row, int64_t stride, int64_t tile, bool transposed) {
        return OperandWay{row % 4 == 0 && stride % 4 == 0 && tile % 4 == 0, transposed};
    };
    return {.a = way(row_of_a(s), s.a_stride, s.transpose_a ? t.block_m : t.block_k, !s.transpose_a),
            .b = way(row_of_b(s), s.b_stride, s.transpose_b ? t.block_k : t.block_n, s.transpose_b)};
}

int64_t threads_of(const ProductTiles& t) { return t.block_m / t.thread_m * (t.block_n / t.thread_n); }

int64_t registers_wanted(const ProductTiles& t, const ProductShape& s) {
    const OperandWays ways = ways_of(t, s);
    auto waiting = [&](const OperandWay& way, int64_t extent) {
        return (t.stages > 2 && way.asynchronous()) || t.stages < 2 ? 0 : divided(extent * t.block_k, threads_of(t));
    };
    return t.thread_m * t.thread_n + (t.thread_m + t.thread_n) * 7 / 4 + waiting(ways.a, t.block_m) +
           waiting(ways.b, t.block_n) + 30;
}

int64_t registers_given(const ProductTiles& t, const Target& target) {
    return tw::registers_given(target, threads_of(t), std::max(t.blocks, 1));
}

int64_t most_blocks(const ProductTiles& t, const Target& target) {
    constexpr int64_t of_driver = 1024, pitch = 4;  // bytes of a block; elements behind each row
    const int64_t threads = rounded_up(threads_of(t), lanes),
                  elements = (t.block_m + t.block_n) * (t.block_k + pitch) + 2 * pitch * t.block_k,
                  shared = bytes * t.stages * elements + of_driver;
    if (shared > target.shared_bytes) return 0;
    return std::min({target.shared_bytes_per_multiprocessor / shared, target.threads_per_multiprocessor / threads,
                     int64_t{target.blocks_per_multiprocessor}});
}

std::vector<ProductTiles> product_space(const ProductShape& s, const Target& target) {
    constexpr int64_t least_threads = 64, most_threads = 256;
    std::vector<ProductTiles> space{{.block_m = 16,
                                     .block_n = 16,
                                     .block_k = std::clamp<int64_t>(s.k, 1, 16),
                                     .thread_m = 1,
                                     .thread_n = 1,
                                     .stages = s.k > 16 ? 2 : 1,
                                     .unroll_k = true}};
    for (auto [thread_m, thread_n] : thread_tiles)
        for (int64_t along_m : thread_counts)
            for (int64_t along_n : thread_counts) {
                ProductTiles t{.block_m = along_m * thread_m,
                               .block_n = along_n * thread_n,
                               .thread_m = thread_m,
                               .thread_n = thread_n,
                               .unroll_k = true};
                const int64_t threads = threads_of(t);
                if (threads < least_threads || threads > most_threads || threads % lanes) continue;
                if (!fits(t.block_m, thread_m, s.m) || !fits(t.block_n, thread_n, s.n)) continue;
                for (int64_t terms : steps_of(thread_m * thread_n, s))
                    for (int64_t chunk : chunks_of(thread_n, s)) {
                        t.block_k = terms, t.chunk_n = chunk;
                        if (terms > 16 && s.k > terms && s.k < long_sum && is_asynchronous(t, s)) continue;
                        t.stages = stages_of(t, s);
                        add_parts(space, t, s, target);
                    }
            }
    return space;
}

}  // namespace tw::schedules

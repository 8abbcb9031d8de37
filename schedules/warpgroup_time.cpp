// The time of a product by warpgroups, from what bounds it; the constants are fitted to thousands of tilings of drawn
// products on an H200. See docs/schedules.md.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "schedules/product_cycles.h"
#include "schedules/tensor_product.h"
#include "schedules/warpgroup_space.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t line_bytes = 128;

// Of all multiprocessors together, a cycle.
constexpr double second_cache_bytes = 5040, memory_bytes = 2200, second_cache_holds = 69e6;
// Of one multiprocessor.
constexpr double arriving_bytes = 68.2, multiplications = 2048, box_bytes = 50;

struct Point {
    double columns, share;
};

/// Between measured points; below the first in proportion.
template <size_t count>
double share_at(const Point (&points)[count], double columns) {
    if (columns <= points[0].columns) return points[0].share * columns / points[0].columns;
    for (size_t p = 1; p < count; ++p) {
        const Point &left = points[p - 1], &right = points[p];
        if (columns <= right.columns)
            return std::lerp(left.share, right.share, (columns - left.columns) / (right.columns - left.columns));
    }
    return points[count - 1].share;
}

/// The share of a multiprocessor's multiplications that tiles of so many columns reach; less with too few stages to run
/// ahead.
double share_of(const WarpgroupTiles& t) {
    static constexpr Point alone[] = {{32, 0.575}, {64, 0.738}, {128, 0.74}, {192, 0.78}, {256, 0.8}},
                           beside[] = {{32, 0.573}, {64, 0.719}, {128, 0.841}, {192, 0.88}, {256, 0.89}},
                           tall[] = {{64, 0.873}, {128, 0.862}, {192, 0.875}},
                           three[] = {{64, 0.704}, {128, 0.85}, {192, 0.854}};
    const double columns = as_double(t.swap ? t.block_m : t.block_n);
    const double share = t.warpgroups == 3                      ? share_at(three, columns)
                         : !t.swap && t.block_m == 256          ? share_at(tall, columns)
                         : t.ping_pong > 1 || t.warpgroups == 2 ? share_at(beside, columns)
                                                                : share_at(alone, columns);
    return share - (t.stages == 2 ? 0.264 : t.stages == 3 ? 0.135 : 0);
}

/// Bytes of a row of a tile that lie together in shared memory: those along the terms are full lines, others 128 bytes
/// wide where they divide the tile, 32 where little does.
int64_t line_of(int64_t columns, bool along_terms, Type operand) {
    return along_terms ? line_bytes : std::gcd(line_bytes, columns * bytes_of(operand));
}
/// What part of a full line's rate they arrive at.
double arrival_share(int64_t line) { return line >= 128 ? 1 : line >= 64 ? 0.736 : 0.55; }
/// Cycles in which a multiprocessor asks for so many bytes of an operand's row, box by box, by steps of the product.
/// Rows that begin in the middle of a sector, and boxes that end behind them, take long: of rows of 48 bytes, 256 for
/// each tile of 64 x 192, a product took twice as long as of rows of 64 or 128.
double asking_for_row(int64_t bytes, int64_t step_bytes, bool in_sectors) {
    const int64_t box = std::min(line_bytes, step_bytes), boxes = bytes / box, rest = bytes % box;
    if (!in_sectors) return 2.5 * as_double(boxes) + (rest == 0 ? 0 : rest + piece_bytes >= box ? 10 : 14);
    return (box < line_bytes ? 2.5 : 1) * as_double(boxes) + (rest == 0 ? 0 : rest * 2 % box == 0 ? 1 : 5);
}
/// Of all rows of a tile's operands, those along the terms.
double asking_cycles(const WarpgroupTiles& t, const TensorProductShape& shape) {
    const double rows = (shape.transpose_a ? 0 : as_double(t.block_m) / t.cluster_columns) +
                        (shape.transpose_b ? as_double(t.block_n) / t.cluster : 0);
    const int64_t step = t.block_k * bytes_of(shape.operand),
                  all = rounded_up(shape.k * bytes_of(shape.operand), shape.copy_operands ? sector_bytes : piece_bytes),
                  part = t.split_k == 1 ? all : divided(divided(all, step), t.split_k) * step;
    return rows * asking_for_row(part, step, all % sector_bytes == 0);
}
/// How many times as long products take that read them: a tile of 208 columns took as long as one of 256.
double times_by_lines(int64_t line) { return line >= 64 ? 1 : 1.25; }

/// Bytes of a cycle that threads copy into rows that begin at no multiple of 16 bytes, but of `together`: fewer where
/// they divide by no power of 2.
double copied_to_odd_rows(int64_t columns, int64_t result_bytes, double together) {
    const bool shifts = std::has_single_bit(static_cast<uint64_t>(columns));
    if (result_bytes == 4) return shifts ? 17 : together < 8 ? 9.5 : 15;
    if (together < 4) return shifts ? 11 : 3.4;
    return shifts ? 15 : 5.7;
}
/// Of a grid of tiles: all blocks, and rounds of those that run at once.
struct Grid {
    int64_t rows, columns;  ///< of clusters
    double blocks, rounds;
};

Grid grid_of(const WarpgroupTiles& t, const TensorProductShape& shape, const Target& target) {
    const int cluster = t.cluster * t.cluster_columns;
    const int64_t at_once = blocks_at_once(target, cluster);
    Grid grid{divided(shape.m, t.block_m * t.cluster), divided(shape.n, t.block_n * t.cluster_columns), 0, 0};
    const int64_t blocks = grid.rows * grid.columns * cluster * std::max<int64_t>(shape.batch, 1) * t.split_k;
    grid.blocks = as_double(blocks);
    grid.rounds = as_double(divided(blocks, at_once));
    return grid;
}

/// What the way out of a block costs memory beside the result's bytes, in bytes. Pieces of rows that begin at no
/// multiple of 16 bytes share sectors with those of the next tile, which memory reads to write them, unless both meet
/// in the cache: so of much that is stored, and of what clusters of rows store. Boxes of 4-byte sums were a sixth
/// slower than threads that store as much from registers. Groups of columns that walk down the rows store strips,
/// whose neighbours come long after: of two such results of 2 bytes that no cache holds, products took a quarter longer
/// than by groups of rows.
double bytes_of_way_out(const WarpgroupTiles& t, const TensorProductShape& shape, const Grid& grid) {
    constexpr double of_a_piece = 583, bytes_of_all_such = 6.5e8, of_boxes = 0.15, of_strips = 0.3;
    const int64_t columns = shape.activation == Activation::SwiGlu ? shape.n / 2 : shape.n,
                  bytes = bytes_of(shape.result);
    if (t.split_k > 1 || !t.stage_result) return 0;
    const double all = as_double(shape.m * columns * std::max<int64_t>(shape.batch, 1) * bytes);
    if (t.store_boxes) return bytes == 4 ? of_boxes * all : 0;
    if (columns * bytes % piece_bytes == 0) return 0;
    const double meeting = t.cluster > 1 ? 1.3 : t.cluster_columns > 1 ? 0.85 : 1;
    const double pieces = all * of_a_piece / as_double(result_columns(t, shape) * bytes) * meeting *
                          std::min(1.0, all / bytes_of_all_such);
    const bool in_strips =
        bytes < 4 && all > second_cache_holds && walk_of(grid.rows, grid.columns, t.raster_group).by_columns;
    return pieces + (in_strips ? of_strips * all : 0);
}

/// Sums of a cycle that leave a multiprocessor, in bytes: by boxes, from registers, or by threads that copy what rows
/// have side by side at multiples of their bytes.
double stored_bytes(const WarpgroupTiles& t, const TensorProductShape& shape, int64_t result_bytes) {
    const int64_t columns = shape.activation == Activation::SwiGlu ? shape.n / 2 : shape.n;
    if (t.store_boxes) {
        const int64_t row = t.epilogue_columns > 0 ? line_bytes : result_columns(t, shape) * result_bytes,
                      line = std::gcd(line_bytes, row);
        const double share = line >= 128 ? 1 : line >= 64 ? 0.58 : line >= 32 ? 0.398 : 0.25;
        return box_bytes * share * (columns * result_bytes % sector_bytes == 0 ? 1 : 0.302) *
               (result_bytes == 4 ? 0.7 : 1);
    }
    const double together = as_double(std::gcd(piece_bytes, columns * result_bytes));
    if (!t.stage_result) {
        if (result_bytes < 4) return std::min(6.0, together);
        if (t.split_k > 1) return 20;
        const int64_t begins = std::gcd(sector_bytes, columns * result_bytes);  // else four lanes fill no sector
        return begins >= 32 ? 20 : begins >= 16 ? 10 : begins >= 8 ? 4.3 : 3;
    }
    if (result_bytes < 4 && together >= piece_bytes) return 19.9;
    return together >= piece_bytes ? 13.9 : copied_to_odd_rows(result_columns(t, shape), result_bytes, together);
}

/// What follows the sums of a tile.
struct Epilogue {
    double alone;   ///< cycles of the warpgroups that have the tile
    double shared;  ///< of what all warpgroups of a multiprocessor share
};

/// A warpgroup alone computes at half the rate of a multiprocessor, and stores nearly as fast as more. Pieces of
/// columns wait for the one before to have left.
Epilogue epilogue_of(const WarpgroupTiles& t, const TensorProductShape& shape, int64_t result_bytes) {
    const double area = as_double(t.block_m * t.block_n), of_piece = 512;
    double store = area * as_double(result_bytes) / stored_bytes(t, shape, result_bytes);
    const double computed = t.split_k > 1 ? 0 : area * 0.0126 * instructions_behind(shape);
    // Threads store no more than is there.
    if (!t.store_boxes && !t.swap) store *= as_double(shape.n) / as_double(rounded_up(shape.n, t.block_n));
    if (shape.activation == Activation::SwiGlu) store /= 2;
    const double pieces = t.epilogue_columns > 0 ? as_double(result_columns(t, shape) / t.epilogue_columns) : 0;
    const double by_those = t.warpgroups == 1 ? 0.778 : t.warpgroups == 3 ? 0.67 : 1;
    return {store * by_those + computed * 2 / t.warpgroups + pieces * of_piece,
            t.store_boxes ? together(store, computed) : store + computed};  // boxes leave by themselves
}

/// Bytes that come from memory once more, as the second level of the cache does not hold them: the side across which
/// groups walk, for each group, and a group's own, for each round.
double bytes_read_again(const WarpgroupTiles& t, const TensorProductShape& shape, const Grid& grid) {
    if (t.split_k > 1) return 0;
    const TileWalk walk = walk_of(grid.rows, grid.columns, t.raster_group);
    const double of_term = as_double(shape.k * bytes_of(shape.operand)), batch = std::max(1.0, as_double(shape.batch));
    const double groups = as_double(walk.by_columns ? grid.columns : grid.rows) / as_double(walk.together),
                 across = of_term * as_double(walk.by_columns ? shape.m : shape.n),
                 own = of_term * as_double(walk.together *
                                           (walk.by_columns ? t.cluster_columns * t.block_n : t.cluster * t.block_m));
    auto lost = [](double bytes) { return std::clamp(bytes / second_cache_holds - 0.7, 0.0, 1.0); };
    const double rounds = std::max(0.0, grid.rounds / batch / groups - 1);
    return batch * ((groups - 1) * across * lost(across + own) + groups * rounds * own * lost(own));
}

/// Of the bytes of operands that are asked for, those that the second level of the cache reads. Where all blocks run at
/// once and wait for each other's steps, several multiprocessors ask for the same at the same time, and it is read
/// once: of 98 MB that arrived 42. Less so of many operands.
double read_of(double asked, const TensorProductShape& shape) {
    constexpr double few = 8e6, many = 20e6, of_more = 0.62;
    const double once =
        as_double((shape.m + shape.n) * shape.k * bytes_of(shape.operand)) * std::max(1.0, as_double(shape.batch));
    if (asked < once) return asked;
    return once + (asked - once) * std::lerp(of_more, 1.0, std::clamp((once - few) / (many - few), 0.0, 1.0));
}

/// Of the operands and the result.
double bytes_of_all(const TensorProductShape& shape) {
    const double m = as_double(shape.m), n = as_double(shape.n), k = as_double(shape.k),
                 columns = shape.activation == Activation::SwiGlu ? n / 2 : n;
    return as_double(std::max<int64_t>(shape.batch, 1)) *
           ((m + n) * k * bytes_of(shape.operand) + m * columns * bytes_of(shape.result));
}

}  // namespace

int64_t blocks_at_once(const Target& target, int cluster) {
    const int64_t all = target.multiprocessors, usable = cluster <= 2   ? all
                                                         : cluster <= 4 ? all * 120 / 132
                                                                        : all * 112 / 132;
    return std::max<int64_t>(usable, 1);
}

/// At once: multiplications, with what tiles take to begin and end; operands that arrive in a multiprocessor, and in
/// all of them from the second level of the cache, to which clusters send one request for all; and memory. Products of
/// a step wait for operands that were asked for some stages before. Warpgroups that take turns end a tile meanwhile.
double predicted_cycles(const WarpgroupTiles& t, const TensorProductShape& shape, const Target& target) {
    if (t.split_k > 1 && shape.activation == Activation::SwiGlu)
        return predicted_cycles(t, shape_of_parts(shape), target) + gating_cycles(shape);
    const Grid grid = grid_of(t, shape, target);
    const int cluster = t.cluster * t.cluster_columns;
    const double area = as_double(t.block_m * t.block_n),
                 steps = as_double(divided(divided(shape.k, t.split_k), t.block_k)),
                 row = steps * as_double(t.block_k * bytes_of(shape.operand));
    const int64_t result_bytes = t.split_k > 1 ? 4 : bytes_of(shape.result);

    const int64_t line_of_a = line_of(t.block_m, !shape.transpose_a, shape.operand),
                  line_of_b = line_of(t.block_n, shape.transpose_b, shape.operand);
    double multiply = times_by_lines(std::min(line_of_a, line_of_b)) * area * row / 2 /
                      (multiplications * std::max(share_of(t), 0.05));
    if (cluster > 1) multiply = multiply * (cluster > 2 ? 1.03 : 1) + 31.2 * steps;
    if (t.store_boxes && (shape.block_scales || t.promotion_interval > 0) && grid.rounds > 1)
        multiply *= 1.04;  // 30 pairs of tilings, of blocks with several tiles
    if (cluster > 1 && shape.block_scales) multiply += 200 * steps;  // blocks end each step, and wait for each other
    const double latency = 1210 + (cluster > 1 ? 397 : 0) + (cluster > 2 ? 86.3 : 0);
    const double sums = together(multiply, steps * latency / (t.stages - 0.458));
    const Epilogue end = epilogue_of(t, shape, result_bytes);
    const double start = std::min(area / 23.8, 1420.0), tile = sums + start + end.alone;
    double next = tile;
    if (t.ping_pong > 1) next = std::max({sums + (cluster > 1 ? 1480 : 806), end.shared, tile / t.ping_pong});
    const double busy = tile + (grid.rounds - 1) * next;

    const double left = as_double(t.block_m) * row / arrival_share(line_of_a),
                 right = as_double(t.block_n) * row / arrival_share(line_of_b);
    const double arrives = grid.rounds * (left + right) / arriving_bytes + start;
    const double asks = grid.rounds * asking_cycles(t, shape) + start;
    const double stored =
        area * as_double(result_bytes) * (!t.stage_result && result_bytes < 4 ? 2 : 1);  // half sectors
    const double asked = grid.blocks * (left / t.cluster_columns + right / t.cluster);
    const bool in_step = grid.rounds == 1 && steps > t.stages;
    const double read = in_step ? read_of(asked, shape) : asked;
    const double cached = (read + grid.blocks * stored) / second_cache_bytes + start;
    const double memory =
        (bytes_of_all(shape) + bytes_read_again(t, shape, grid) + bytes_of_way_out(t, shape, grid)) / memory_bytes +
        start;
    const double cycles = together(busy, arrives, asks, cached, memory) + 3170 + (cluster > 1 ? 707 : 0);
    if (t.split_k == 1) return cycles;
    const double parts = as_double(shape.m * shape.n * std::max<int64_t>(shape.batch, 1) * t.split_k);
    return cycles + 2740 + added_cycles(parts);  // by a second kernel
}

}  // namespace tw::schedules

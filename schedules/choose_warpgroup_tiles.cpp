// Tiles of warpgroups, rated by what they reached on an H200: see docs/performance.md.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "schedules/tensor_product.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t shared_bytes = 232448 - 4096;  // of a block, but for barriers and gaps
constexpr int64_t line_bytes = 128;
constexpr int most_stages = 12;

/// The share of a multiprocessor's rate that warpgroups of 64 rows reach, on so many columns: one, or two side by side.
double share_of(int warpgroups, int64_t columns) {
    struct Point {
        int64_t columns;
        double one, two;
    };
    static constexpr Point measured[] = {{8, 0.10, 0.15},   {16, 0.20, 0.25},  {32, 0.35, 0.40}, {64, 0.50, 0.56},
                                         {128, 0.72, 0.74}, {192, 0.78, 0.89}, {256, 0.80, 0.90}};
    double share = measured[0].one;
    for (size_t p = 1; p < std::size(measured); ++p) {
        const Point &left = measured[p - 1], &right = measured[p];
        if (columns < left.columns) break;
        double part = std::min(1.0, double(columns - left.columns) / double(right.columns - left.columns));
        share = warpgroups == 1 ? std::lerp(left.one, right.one, part) : std::lerp(left.two, right.two, part);
    }
    return share;
}

/// The columns of a block's result: pairs of gated columns make one.
int64_t result_columns(const WarpgroupTiles& t, const TensorProductShape& shape) {
    return shape.activation == Activation::SwiGlu ? t.block_n / 2 : t.block_n;
}

int64_t stage_bytes(const WarpgroupTiles& t, const TensorProductShape& shape) {
    return (t.block_m + t.block_n) * t.block_k * bytes_of(shape.operand);
}

/// Of the operands and the result.
double bytes_of_all(const TensorProductShape& shape) {
    const double m = as_double(shape.m), n = as_double(shape.n), k = as_double(shape.k),
                 columns = shape.activation == Activation::SwiGlu ? n / 2 : n;
    return as_double(std::max<int64_t>(shape.batch, 1)) *
           ((m + n) * k * bytes_of(shape.operand) + m * columns * bytes_of(shape.result));
}

/// As many stages as fit beside the result, or none if two do not, three of groups that take turns; lines of k twice as
/// long where tiles are small.
WarpgroupTiles completed(WarpgroupTiles t, const TensorProductShape& shape) {
    t.block_k = line_bytes / bytes_of(shape.operand);
    if (t.block_m + t.block_n <= 128 && t.block_k < shape.k) t.block_k *= 2;
    if (shape.block_scales) t.block_k = std::min(t.block_k, block_of_scale);
    int64_t stages = (shared_bytes - staged_result_bytes(t, shape)) / stage_bytes(t, shape);
    t.stages = stages < (t.ping_pong > 1 ? 3 : 2) ? 0 : static_cast<int>(std::min<int64_t>(stages, most_stages));
    return t;
}

/// Columns of an instruction come in eights, those of bytes in sixteens; where they lie side by side in memory, in
/// lines of 32 bytes. Of one tile of eight, two that a thread holds are both there or none.
int64_t narrow_step(int64_t columns, Type operand, bool side_by_side) {
    bool halves = columns < 8 && columns % 2 == 0;
    return operand == i8 || side_by_side || halves ? 16 : 8;
}

/// Those that few tiles side by side share evenly.
std::vector<int64_t> shared_widths(const TensorProductShape& shape) {
    constexpr int64_t most_width = 256, least_width = 128;
    const int64_t step = shape.operand == i8 || !shape.transpose_b || shape.activation == Activation::SwiGlu ? 16 : 8;
    std::vector<int64_t> widths;
    for (int64_t tiles = divided(shape.n, most_width); tiles <= 4; ++tiles)
        if (int64_t width = rounded_up(divided(shape.n, tiles), step); width >= least_width && width <= most_width)
            widths.push_back(width);
    return widths;
}

std::vector<WarpgroupTiles> candidates(const TensorProductShape& shape) {
    std::vector<WarpgroupTiles> found;
    auto add_ways = [&](const WarpgroupTiles& t) {
        if (!keeps_together(t, shape) || !sums_fit(t, shape)) return;
        for (WarpgroupTiles way : epilogues(t, shape))
            if (way = completed(way, shape); way.stages > 0) found.push_back(way);
    };
    auto add = [&](WarpgroupTiles t) {
        add_ways(t);  // of all terms, or parts so short that they lose no bits
        t.promotion_interval = exact_terms(shape);
        if (t.promotion_interval > 0) add_ways(t);
    };
    for (int64_t n : {64, 96, 128, 144, 160, 176, 192, 208, 256}) add({.block_m = 128, .block_n = n, .warpgroups = 2});
    for (int64_t n : {64, 128, 192, 256}) add({.block_m = 64, .block_n = n, .warpgroups = 1});
    add({.block_m = 256, .block_n = 128, .warpgroups = 2});
    for (int64_t n : shared_widths(shape)) {
        add({.block_m = 128, .block_n = n, .warpgroups = 2});
        add({.block_m = 256, .block_n = n, .warpgroups = 2});
    }
    add({.block_m = 192, .block_n = 96, .warpgroups = 3});
    if (shape.m > 512 && shape.n > 256) add({.block_m = 128, .block_n = 256, .warpgroups = 2, .cluster = 2});
    if (exact_terms(shape)) add({.block_m = 192, .block_n = 128, .warpgroups = 3});
    add({.block_m = 128, .block_n = 128, .warpgroups = 1, .ping_pong = 2});
    for (int cluster : {1, 2})
        if (cluster == 1 || shape.m > 128)
            add({.block_m = 128, .block_n = 192, .warpgroups = 1, .cluster = cluster, .ping_pong = 2});
    for (int64_t n : {128, 256}) add({.block_m = 64, .block_n = n, .warpgroups = 1, .ping_pong = 2});
    if (shape.activation == Activation::GeluTanh && !exact_terms(shape))  // what is computed takes longest
        add({.block_m = 64, .block_n = 128, .warpgroups = 1, .ping_pong = 4});
    for (int64_t n : {8, 16, 32})
        if (shape.n <= n && n % narrow_step(shape.n, shape.operand, !shape.transpose_b) == 0)
            for (int64_t m : {64, 128, 256}) add({.block_m = m, .block_n = n, .warpgroups = m > 64 ? 2 : 1});
    for (int64_t parts = 1; parts <= 3; ++parts) {
        int64_t step = narrow_step(shape.m, shape.operand, shape.transpose_a);
        int64_t rows = divided(divided(shape.m, parts), step) * step;
        if (rows > 192) continue;
        add({.block_m = rows, .block_n = 64, .warpgroups = 1, .swap = true});
        add({.block_m = rows, .block_n = 128, .warpgroups = 2, .swap = true});
    }
    return found;
}

/// Clusters stay within groups of 14 to 18 multiprocessors: 128 blocks in fours took two rounds on the 132 of an H200,
/// 120 in fours and 112 in eights take one.
int64_t blocks_at_once(int cluster, const Target& target) {
    const int64_t all = target.multiprocessors;
    return std::max<int64_t>(cluster <= 2 ? all : cluster <= 4 ? all * 120 / 132 : all * 112 / 132, 1);
}

}  // namespace

std::vector<WarpgroupTiles> epilogues(const WarpgroupTiles& tiles, const TensorProductShape& shape) {
    WarpgroupTiles registers = tiles;
    registers.stage_result = registers.store_boxes = false;
    registers.epilogue_columns = 0;
    std::vector<WarpgroupTiles> ways{registers};
    if (tiles.split_k > 1) return ways;
    WarpgroupTiles staged = registers;
    staged.stage_result = true;
    int64_t columns = shape.activation == Activation::SwiGlu ? shape.n / 2 : shape.n;
    // Pairs of sums of 4 bytes fill sectors from registers, too.
    if (bytes_of(shape.result) <= 2 || columns % 2 != 0) ways.push_back(staged);
    if (tiles.swap || columns * bytes_of(shape.result) % piece_bytes != 0) return ways;
    staged.store_boxes = true;
    ways.push_back(staged);
    int64_t piece = line_bytes / bytes_of(shape.result), own = result_columns(tiles, shape);
    bool whole_tiles = tiles.block_m <= shape.m && tiles.block_n <= shape.n;
    if (!whole_tiles || own <= piece || own % piece != 0 || tiles.promotion_interval > 0 || shape.block_scales)
        return ways;
    staged.epilogue_columns = piece;
    ways.push_back(staged);
    return ways;
}

/// Rows of what threads copy on are 16 bytes longer, against bank conflicts.
int64_t staged_result_bytes(const WarpgroupTiles& t, const TensorProductShape& shape) {
    int64_t bias = shape.add_bias && t.split_k == 1 ? t.block_n * bytes_of(shape.result) * t.ping_pong : 0;
    int64_t bytes = rounded_up(bias, 1024);
    if (!t.stage_result) return bytes;
    int64_t columns = t.epilogue_columns > 0 ? t.epilogue_columns : result_columns(t, shape);
    int64_t row = columns * bytes_of(shape.result) + (t.store_boxes ? 0 : piece_bytes);
    return bytes + rounded_up(t.block_m * row, 1024) * t.ping_pong;
}

/// A cycle: those of boxes, of pairs of 2 bytes that leave registers, of 4 bytes that do one by one, or of threads that
/// copy what rows of the result have side by side at multiples of its bytes.
double stored_bytes(const WarpgroupTiles& t, const TensorProductShape& shape, bool halves) {
    if (t.store_boxes) return 50;
    const int64_t columns = shape.activation == Activation::SwiGlu ? shape.n / 2 : shape.n;
    if (!t.stage_result && !halves) return t.split_k == 1 && columns % 2 != 0 ? 3 : 20;
    if (t.stage_result && bytes_of(shape.result) == 4) return 15;
    const double together = as_double(std::gcd(piece_bytes, columns * bytes_of(shape.result)));
    if (halves) return std::min(6.0, 1.5 * together);
    if (together >= piece_bytes) return 20;
    return (1 + 1.25 * together) * std::min(1.0, 128 / as_double(result_columns(t, shape)));  // wide rows took longer
}

/// What follows the sums of a tile.
struct Epilogue {
    double alone;   ///< cycles of the warpgroups that have the tile
    double shared;  ///< of what all warpgroups of a multiprocessor share
};

/// A warpgroup alone issues half of what a multiprocessor does. Pieces of columns wait for the one before to have left.
Epilogue epilogue_of(const WarpgroupTiles& t, const TensorProductShape& shape, bool halves) {
    const double area = as_double(t.block_m * t.block_n), of_piece = 500;
    double store = area * (t.split_k > 1 ? 4 : bytes_of(shape.result)) / stored_bytes(t, shape, halves), computed = 0;
    // Threads store no more than is there.
    if (!t.store_boxes && !t.swap) store *= as_double(shape.n) / as_double(rounded_up(shape.n, t.block_n));
    if (shape.activation == Activation::Gelu) computed = area * 0.35;  // 45 instructions
    if (shape.activation == Activation::GeluTanh) computed = area * 0.12;
    if (shape.activation == Activation::SwiGlu) computed = area * 0.06, store /= 2;
    const double pieces = t.epilogue_columns > 0 ? as_double(result_columns(t, shape) / t.epilogue_columns) : 0;
    return {store + computed * 2 / t.warpgroups + pieces * of_piece, store + computed};
}

/// Cycles of so many bytes of shared memory that arrive in rows along the terms, or else in lines of columns of a tile:
/// 128 bytes wide where they divide it, 32 where little does.
double loading_cycles(double bytes, int64_t columns, bool along_terms, Type operand) {
    const int64_t line = along_terms ? line_bytes : std::gcd(line_bytes, columns * bytes_of(operand));
    return bytes / (line >= 128 ? 44 : line >= 64 ? 40 : 16);
}

/// A multiprocessor multiplies 2048 pairs of 16 bits a cycle, starts in some 1200, 1000 more in a cluster, and each
/// tile in up to 1500; its results leave as epilogue_of tells, operands arrive as loading_cycles does, all of them
/// together at 2000 bytes a cycle. Warpgroups that take turns lose 600 cycles a tile, clusters of them 1000, and
/// multiply while others end theirs. A second kernel reads parts at 1700 bytes a cycle.
double predicted_cycles(const WarpgroupTiles& t, const TensorProductShape& shape, const Target& target) {
    int64_t split = t.split_k, k = divided(shape.k, split), batch = std::max<int64_t>(shape.batch, 1);
    int64_t blocks = rounded_up(divided(shape.m, t.block_m), t.cluster) *
                     rounded_up(divided(shape.n, t.block_n), t.cluster_columns) * batch * split;
    auto area = static_cast<double>(t.block_m * t.block_n);
    double share = share_of(t.ping_pong > 1 ? 2 : t.warpgroups, t.swap ? t.block_m : t.block_n);
    if (t.block_m == 256) share = share_of(t.warpgroups, std::min<int64_t>(2 * t.block_n, 256));
    if (t.warpgroups == 3) share = 0.84;
    if (t.stages <= 3) share -= t.stages == 2 ? 0.22 : t.block_m == 256 ? 0.04 : 0.11;  // to run ahead
    // Pairs that share what they load spend less of the power that bounds long products.
    if (t.cluster == 2 && t.warpgroups == 2) share += 0.02;
    const double row = as_double(k * bytes_of(shape.operand));
    double load =
        loading_cycles(as_double(t.block_m / t.cluster_columns) * row, t.block_m, !shape.transpose_a, shape.operand) +
        loading_cycles(as_double(t.block_n / t.cluster) * row, t.block_n, shape.transpose_b, shape.operand);
    double multiply = area * row / 2 / (2048 * share);
    int result_bytes = split > 1 ? 4 : bytes_of(shape.result);
    bool halves = !t.stage_result && result_bytes < 4;
    if (halves) load += 2 * area * result_bytes / 44;  // of sectors, each written twice
    const Epilogue end = epilogue_of(t, shape, halves);
    double main = std::max(multiply, load), start = std::min(300 + area / 27, 1500.0);
    const bool together = t.cluster * t.cluster_columns > 1;
    double tile = main + start + end.alone, next = tile;
    if (t.ping_pong > 1)
        next = std::max({main + (together ? 1000 : 600), end.shared, tile / t.ping_pong});  // results leave meanwhile
    double once = bytes_of_all(shape) / 2000;
    const int64_t rounds = divided(blocks, blocks_at_once(t.cluster * t.cluster_columns, target));
    double busy = tile + as_double(rounds - 1) * next;
    double cycles = std::max(busy, once) + busy / 20 + (together ? 2200 : 1200);
    if (split == 1) return cycles;
    return cycles + 4000 + static_cast<double>(shape.m * shape.n * batch * split * 8) / 1700;
}

bool sums_fit(const WarpgroupTiles& t, const TensorProductShape& shape) {
    int64_t sums = t.block_m * t.block_n / (t.warpgroups * 128);
    if (t.promotion_interval > 0) return sums <= 64;                // and as many of parts
    if (shape.block_scales) return sums <= 64 && t.warpgroups < 3;  // and scales
    return sums <= (t.warpgroups >= 3 ? 96 : 192);
}

int64_t exact_terms(const TensorProductShape& shape) {
    constexpr int64_t most = 1024;
    bool loses_bits = (shape.operand == e4m3 || shape.operand == e5m2) && !shape.block_scales;
    return loses_bits && shape.k > most ? most : 0;
}

int64_t promotion_interval(const WarpgroupTiles& t, const TensorProductShape& shape) {
    const int64_t most = exact_terms(shape), of_part = divided(divided(shape.k, t.block_k), t.split_k) * t.block_k;
    return of_part > most ? most : 0;
}

namespace {

/// As many as pay, and as leave none that loses bits.
std::vector<int64_t> numbers_of_parts(const TensorProductShape& shape) {
    constexpr int64_t shortest_part = 512;
    std::vector<int64_t> parts{1};
    if (!may_split_k(shape)) return parts;
    for (int64_t count : {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64})
        if (shape.k / count >= shortest_part) parts.push_back(count);
    if (const int64_t most = exact_terms(shape)) parts.push_back(divided(shape.k, most));
    return parts;
}

}  // namespace

WarpgroupTiles warpgroup_tiles(const TensorProductShape& shape, const Target& target) {
    WarpgroupTiles best;
    double least = 0;
    for (WarpgroupTiles tiles : candidates(shape))
        for (int64_t split : numbers_of_parts(shape)) {
            tiles.split_k = split;
            const bool splits = !tiles.stage_result && tiles.promotion_interval == 0;
            if ((split > 1 && !splits) || tiles.promotion_interval != promotion_interval(tiles, shape)) continue;
            double cycles = predicted_cycles(tiles, shape, target);
            if (least != 0 && cycles >= least) continue;
            least = cycles;
            best = tiles;
        }
    return best;
}

}  // namespace tw::schedules

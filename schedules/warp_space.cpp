#include "schedules/warp_space.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "schedules/tensor_product_space.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t narrowest_tile = 32;  // bytes of a row along k
constexpr int64_t shortest_part = 512;  // terms of the sum for which a part pays
constexpr int most_stages = 8;

/// Rows of one expert are a matrix of a batch.
int64_t rows_of(const TensorProductShape& shape) { return shape.experts ? rows_of_block : shape.m; }

int64_t blocks_of(const TensorTiles& t, const TensorProductShape& shape) {
    const int64_t batch = shape.experts ? divided(shape.m, rows_of_block) : std::max<int64_t>(shape.batch, 1);
    return divided(rows_of(shape), t.block_m) * divided(shape.n, t.block_n) * divided(batch, t.block_b);
}

/// Of gated columns, each warp makes some of the product that the result takes from registers.
TensorTiles within(TensorTiles t, const TensorProductShape& shape) {
    if (shape.activation != Activation::SwiGlu) return t;
    t.block_m = std::min(t.block_m, std::max(rounded_up(shape.m, t.warp_m), t.warp_m));
    t.block_n = std::min(t.block_n, std::max(rounded_up(shape.n, t.warp_n), t.warp_n));
    return t;
}

/// Blocks of four or eight warps, small ones of two, each warp as near to a square as the block allows.
std::vector<TensorTiles> blocks(const TensorProductShape& shape) {
    std::vector<TensorTiles> result;
    auto add = [&](const TensorTiles& t) {
        const int64_t warps = t.block_m / t.warp_m * (t.block_n / t.warp_n);
        const bool is_even = t.warp_m <= 2 * t.warp_n && t.warp_n <= 4 * t.warp_m;
        // fp8 is converted in registers, which leaves less room for sums.
        const bool fits = bytes_of(shape.operand) > 1 || t.warp_m * t.warp_n < 64 * 64;
        if (!is_even || !fits || (warps != 4 && warps != 8 && (warps != 2 || t.block_m * t.block_n > 2048))) return;
        const TensorTiles own = within(t, shape);
        if (std::ranges::find(result, own) == result.end()) result.push_back(own);
    };
    for (int64_t rows : {16, 32, 64, 128})
        for (int64_t columns : {32, 64, 128, 256}) {
            if (rows >= 2 * std::max<int64_t>(rows_of(shape), 16)) continue;
            if (columns >= 2 * std::max<int64_t>(shape.n, 32)) continue;
            for (int64_t warp_rows : {16, 32, 64})
                for (int64_t warp_columns : {16, 32, 64})
                    if (rows % warp_rows == 0 && columns % warp_columns == 0)
                        add({.block_m = rows, .block_n = columns, .warp_m = warp_rows, .warp_n = warp_columns});
        }
    return result;
}

/// Small matrices of a batch, several a block: four or eight warps, each with one of them or more, or a part of one.
std::vector<TensorTiles> blocks_of_matrices(const TensorProductShape& shape) {
    constexpr int64_t rows_of_instruction = 16, columns_of_instruction = 8, lanes = 32, most_sums = 64;
    constexpr int64_t least_columns = 16;  // of a warp: two instructions' operands are loaded at once
    const int64_t m = rounded_up(shape.m, rows_of_instruction),
                  n = std::max(rounded_up(shape.n, columns_of_instruction), least_columns);
    std::vector<TensorTiles> result;
    if (!has_small_matrices(shape)) return result;
    const int64_t neighbours = shape.neighbours > 0 ? shape.neighbours : shape.batch;
    auto fills_blocks = [&](int64_t together) {
        const int64_t places = rounded_up(neighbours, together);
        return together > 1 && together <= neighbours && 5 * (places - neighbours) <= neighbours;
    };
    for (int64_t rows : {1, 2})
        for (int64_t columns : {1, 2})
            for (int64_t own : {1, 2, 4, 8})
                for (int64_t warps : {4, 8}) {
                    const int64_t together = warps / (rows * columns) * own;
                    const TensorTiles t{.block_m = m,
                                        .block_n = n,
                                        .warp_m = m / rows,
                                        .warp_n = n / columns,
                                        .block_b = together,
                                        .warp_b = own};
                    const bool is_even = m % (rows * rows_of_instruction) == 0 &&
                                         n % (columns * columns_of_instruction) == 0 && n / columns >= least_columns;
                    const int64_t sums = own * t.warp_m * t.warp_n / lanes;
                    const bool fits = sums <= most_sums || (own == 1 && bytes_of(shape.operand) > 1);
                    if (is_even && fits && fills_blocks(together)) result.push_back(t);
                }
    return result;
}

/// Whether a thread has room for its sums, and for elements of the next step that no asynchronous copy brings.
bool registers_fit(const TensorTiles& t, const TensorProductShape& shape) {
    constexpr int64_t most = 168, lanes = 32;
    const int64_t bytes = bytes_of(shape.operand), narrowest = bytes == 4 ? 8 : 4,
                  threads = t.block_m / t.warp_m * (t.block_n / t.warp_n) * (t.block_b / t.warp_b) * lanes;
    auto held = [&](int64_t row, int64_t extent) {
        const bool waits = !shape.copy_operands && std::gcd(piece_bytes, row * bytes) < narrowest;
        return waits ? t.block_b * extent * t.block_k / threads : 0;
    };
    return t.warp_b * t.warp_m * t.warp_n / lanes + held(shape.transpose_a ? rows_of(shape) : shape.k, t.block_m) +
               held(shape.transpose_b ? shape.k : shape.n, t.block_n) <=
           most;
}

/// One, and more where the sum is long and the tiles do not fill the multiprocessors a few times.
std::vector<int64_t> parts_of_k(const TensorTiles& t, const TensorProductShape& shape, const Target& target) {
    std::vector<int64_t> parts{1};
    const int64_t tiles = blocks_of(t, shape);
    if (!may_split_k(shape) || t.block_b > 1 || tiles >= 4 * target.multiprocessors) return parts;
    for (int64_t count : {2, 3, 4, 6, 8, 12, 16, 24, 32})
        if (shape.k / count >= shortest_part && tiles * count <= 12 * target.multiprocessors) parts.push_back(count);
    return parts;
}

/// Whether copies of less than 16 bytes, which come through the first cache, bring an operand.
bool copies_narrow(const TensorProductShape& shape) {
    const int64_t bytes = bytes_of(shape.operand), row_a = shape.transpose_a ? rows_of(shape) : shape.k,
                  row_b = shape.transpose_b ? shape.k : shape.n;
    return !shape.copy_operands && (row_a * bytes % piece_bytes != 0 || row_b * bytes % piece_bytes != 0);
}

/// With as many stages as fit where so many blocks share the shared memory, or share what leaves more to the first
/// cache; none where copies cannot run ahead: two stages of more than two tiles took up to three times as long. Of
/// small matrices of few terms one is enough, as copies of other blocks run meanwhile.
void add_stages(std::vector<TensorTiles>& space, TensorTiles t, const TensorProductShape& shape, const Target& target) {
    const int64_t steps = divided(divided(shape.k, t.block_k), t.split_k), least = std::clamp<int64_t>(steps, 2, 3);
    t.stages = 0;
    const int64_t rest = shared_bytes_of(t, shape);
    t.stages = 1;
    const int64_t stage = shared_bytes_of(t, shape) - rest;
    if (t.block_b > 1 && steps == 1) {
        if (rest + stage <= target.shared_bytes) space.push_back(t);
        return;
    }
    constexpr int64_t most_shared = 196 * 1024, of_driver = 1024;  // that leave the first cache 60 KB
    std::set<int, std::greater<>> counts;
    const int64_t less = std::min<int64_t>(target.shared_bytes, copies_narrow(shape) ? most_shared - of_driver : 0);
    for (int64_t shared : {int64_t{target.shared_bytes}, less})
        for (int side_by_side : {1, 2, 3, 4}) {
            const int64_t fitting = (shared / side_by_side - rest) / stage;
            const int64_t stages = std::min({fitting, std::max<int64_t>(steps, 2), int64_t{most_stages}});
            if (stages >= least) counts.insert(static_cast<int>(stages));
        }
    for (int count : counts) {
        t.stages = count;
        space.push_back(t);
    }
}

}  // namespace

bool has_small_matrices(const TensorProductShape& shape) {
    constexpr int64_t largest = 64;
    const int64_t bytes = bytes_of(shape.operand), narrowest = bytes == 4 ? 8 : 4,
                  row_a = (shape.transpose_a ? shape.m : shape.k) * bytes,
                  row_b = (shape.transpose_b ? shape.k : shape.n) * bytes;
    if (std::gcd(piece_bytes, row_a) < narrowest || std::gcd(piece_bytes, row_b) < narrowest) return false;
    return shape.batch > 1 && shape.m <= largest && shape.n <= largest && shape.experts == 0 && !shape.block_scales &&
           shape.row_terms == RowTerms::All && shape.activation != Activation::SwiGlu;
}

std::vector<TensorTiles> warp_space(const TensorProductShape& shape, const Target& target) {
    std::vector<TensorTiles> space;
    const int64_t bytes = bytes_of(shape.operand);
    std::vector<TensorTiles> sizes = blocks(shape);
    for (const TensorTiles& t : blocks_of_matrices(shape)) sizes.push_back(t);
    for (TensorTiles t : sizes) {
        int64_t last = 0;
        for (int64_t row_bytes : {64, 128}) {
            t.block_k = row_bytes / bytes;
            while (t.block_k * bytes > narrowest_tile && t.block_k / 2 >= shape.k) t.block_k /= 2;
            if (t.block_b > 1) t.block_k = std::min(t.block_k, rounded_up(shape.k, narrowest_tile / bytes));
            if (t.block_k == last) continue;
            last = t.block_k;
            if (!registers_fit(t, shape)) continue;
            for (int64_t parts : parts_of_k(t, shape, target)) {
                t.split_k = parts;
                t.stage_result = false;
                add_stages(space, t, shape, target);
                // Sums of 4 bytes fill sectors of memory from registers, too.
                t.stage_result = parts == 1 && bytes_of(shape.result) <= 2;
                if (t.stage_result) add_stages(space, t, shape, target);
            }
        }
    }
    return space;
}

}  // namespace tw::schedules

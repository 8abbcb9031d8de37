#include "schedules/warpgroup_space.h"

#include <algorithm>
#include <set>

#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t shared_bytes = 232448 - 4096;  // of a block, but for barriers and gaps
constexpr int64_t line_bytes = 128;
constexpr int most_stages = 12;
constexpr int64_t shortest_part = 512;       // terms of the sum for which a part pays
constexpr int64_t most_split_columns = 192;  // of instructions whose rows run along n

int64_t stage_bytes(const WarpgroupTiles& t, const TensorProductShape& shape) {
    const int64_t scales = shape.block_scales ? rounded_up(t.block_m * bytes_of(f32), line_bytes) : 0;
    return (t.block_m + t.block_n) * t.block_k * bytes_of(shape.operand) + scales;
}

int64_t blocks_of(const WarpgroupTiles& t, const TensorProductShape& shape) {
    return divided(shape.m, t.block_m) * divided(shape.n, t.block_n) * std::max<int64_t>(shape.batch, 1);
}

/// Columns of an instruction come in eights, those of bytes in sixteens; where they lie side by side in memory, in
/// lines of 32 bytes. Of one tile of eight, two that a thread holds are both there or none.
int64_t column_step(int64_t columns, Type operand, bool side_by_side) {
    bool halves = columns < 8 && columns % 2 == 0;
    return operand == i8 || side_by_side || halves ? 16 : 8;
}

/// Even widths up to `most`, and those that share the extent evenly; multiples of `step`.
std::set<int64_t> widths(int64_t extent, int64_t step, std::initializer_list<int64_t> even, int64_t most) {
    std::set<int64_t> result;
    for (int64_t width : even)
        if (width <= most && width % step == 0 && width < extent + step) result.insert(width);
    const int64_t fewest = divided(extent, most);
    for (int64_t tiles = fewest; tiles < fewest + 4; ++tiles) {
        const int64_t width = rounded_up(divided(extent, tiles), step);
        if (width <= most && (width >= 64 || tiles == 1)) result.insert(width);
    }
    return result;
}

/// Sizes of blocks, without their k, stages and parts.
std::vector<WarpgroupTiles> blocks(const TensorProductShape& shape) {
    std::vector<WarpgroupTiles> result;
    int64_t step = column_step(shape.n, shape.operand, !shape.transpose_b);
    if (shape.activation == Activation::SwiGlu) step = 16;
    for (int64_t width : widths(shape.n, step, {64, 96, 128, 144, 160, 176, 192, 208, 224, 256}, 256))
        for (int warpgroups : {1, 2, 3})
            for (int64_t rows : {64, 128})
                if (rows * warpgroups <= 256 && rows * (warpgroups - 1) < std::max<int64_t>(shape.m, 1))
                    result.push_back({.block_m = rows * warpgroups, .block_n = width, .warpgroups = warpgroups});
    if (shape.m > 3 * most_split_columns) return result;
    step = column_step(shape.m, shape.operand, shape.transpose_a);
    std::set<int64_t> heights;
    for (int64_t parts = 1; parts <= 3; ++parts) heights.insert(rounded_up(divided(shape.m, parts), step));
    for (int64_t height : heights)
        if (height <= most_split_columns)
            for (int warpgroups : {1, 2})
                result.push_back(
                    {.block_m = height, .block_n = 64 * warpgroups, .warpgroups = warpgroups, .swap = true});
    return result;
}

/// Whether its blocks may load together: they have tiles, and as many terms each, and each loads a part of the box, of
/// whole rows of swizzled lines.
bool shares_loads(const WarpgroupTiles& t, const TensorProductShape& shape) {
    constexpr int64_t rows_of_swizzle = 8;
    if (t.cluster * t.cluster_columns == 1) return true;
    if (shape.transpose_b && t.block_n % (rows_of_swizzle * t.cluster) != 0) return false;
    return keeps_together(t, shape) && !t.swap && divided(shape.m, t.block_m) > t.cluster / 2 &&
           divided(shape.n, t.block_n) > t.cluster_columns / 2;
}

/// The tile as it is, by a few blocks that load together, or up to eight where all tiles are made at once, and by
/// groups that take turns: three and four of them where what is computed behind the sums takes longest, so that some
/// compute while one multiplies. What waits for what is before it needs more warps more than it needs wide tiles.
std::vector<WarpgroupTiles> groupings(const WarpgroupTiles& t, const TensorProductShape& shape, const Target& target) {
    const bool at_once = blocks_of(t, shape) * t.split_k <= target.multiprocessors,
               computes = instructions_behind(shape) >= many_instructions_behind && !exact_terms(shape);
    std::vector<WarpgroupTiles> result;
    for (int cluster : {1, 2, 4})
        for (int columns : {1, 2, 4})
            for (int turns : {1, 2, 3, 4}) {
                WarpgroupTiles grouped = t;
                grouped.cluster = cluster;
                grouped.cluster_columns = columns;
                grouped.ping_pong = turns;
                const bool alternates = turns == 1 || (t.warpgroups == 1 && !t.swap && !at_once),
                           has_room = turns < 3 || (computes && cluster * columns <= (turns == 3 ? 2 : 1) &&
                                                    t.block_m * t.block_n <= (turns == 3 ? 64 * 192 : 64 * 128));
                if (cluster * columns > most_blocks_of_cluster(grouped)) continue;
                if (cluster * columns <= (at_once ? 8 : 2) && alternates && has_room && shares_loads(grouped, shape))
                    result.push_back(grouped);
            }
    return result;
}

/// One, some more, as many as fill the multiprocessors one, two and three times, and as many as leave none that loses
/// bits.
std::vector<int64_t> parts_of_k(const WarpgroupTiles& t, const TensorProductShape& shape, const Target& target) {
    constexpr int64_t most_rounds = 3;
    std::vector<int64_t> parts{1};
    if (!may_split_k(shape)) return parts;
    const int64_t at_once = target.multiprocessors, tiles = blocks_of(t, shape);
    std::set<int64_t> counts{2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
    for (int64_t rounds = 1; rounds <= most_rounds; ++rounds)
        counts.insert(std::clamp<int64_t>(rounds * at_once / std::max<int64_t>(tiles, 1), 2, 64));
    for (int64_t count : counts)
        if (shape.k / count >= shortest_part && tiles < 2 * at_once && tiles * count <= most_rounds * at_once)
            parts.push_back(count);
    if (const int64_t most = exact_terms(shape))
        if (const int64_t count = divided(shape.k, most); std::ranges::find(parts, count) == parts.end())
            parts.push_back(count);
    return parts;
}

/// As many stages as fit beside the result, or none if two do not, three of groups that take turns.
int fitting_stages(const WarpgroupTiles& t, const TensorProductShape& shape) {
    const int64_t stages = (shared_bytes - staged_result_bytes(t, shape)) / stage_bytes(t, shape);
    return stages < (t.ping_pong > 1 ? 3 : 2) ? 0 : static_cast<int>(std::min<int64_t>(stages, most_stages));
}

}  // namespace

TileWalk walk_of(int64_t rows, int64_t columns, int64_t raster_group) {
    const int64_t of_rows = largest_divisor(rows, raster_group), of_columns = largest_divisor(columns, raster_group);
    const bool by_columns = 2 * of_rows < raster_group && of_columns > of_rows && rows > of_rows;
    return {by_columns ? of_columns : of_rows, by_columns};
}

int64_t result_columns(const WarpgroupTiles& t, const TensorProductShape& shape) {
    return shape.activation == Activation::SwiGlu ? t.block_n / 2 : t.block_n;
}

std::vector<WarpgroupTiles> warpgroup_space(const TensorProductShape& shape, const Target& target) {
    std::vector<WarpgroupTiles> space;
    auto add = [&](const WarpgroupTiles& tiles) {
        for (WarpgroupTiles t : epilogues(tiles, shape))
            if (t.stages = fitting_stages(t, shape); t.stages > 0) space.push_back(t);
    };
    for (WarpgroupTiles t : blocks(shape)) {
        if (!keeps_together(t, shape)) continue;
        for (int64_t row_bytes : {line_bytes, 2 * line_bytes}) {
            t.block_k = row_bytes / bytes_of(shape.operand);
            if (row_bytes > line_bytes && (t.block_k / 2 >= shape.k || t.block_m + t.block_n > 256)) continue;
            if (shape.block_scales && (t.block_k > block_of_scale || block_of_scale % t.block_n != 0)) continue;
            for (int64_t parts : parts_of_k(t, shape, target)) {
                t.split_k = parts;
                t.promotion_interval = promotion_interval(t, shape);
                if (!sums_fit(t, shape) || (parts > 1 && t.promotion_interval > 0)) continue;
                for (const WarpgroupTiles& grouped : groupings(t, shape, target)) add(grouped);
            }
        }
    }
    return space;
}

}  // namespace tw::schedules

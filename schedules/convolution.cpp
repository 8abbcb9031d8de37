#include "schedules/convolution.h"

#include <algorithm>

#include "schedules/choose.h"
#include "schedules/elementwise.h"
#include "schedules/halo_convolution.h"
#include "schedules/loading_roles.h"
#include "schedules/producers.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
bool takes_warpgroups(const ConvolutionShape& s, const Target& target) {
    return target.has_wgmma && target.has_tma && s.images * s.height * s.width * s.channels * s.filters > 0 &&
           s.reads_image();
}

namespace {

constexpr int64_t rows_of_unit = 64;  // of a wgmma

/// Casts of adjoints and the like are made where they are read; operands stay.
void inline_elements(Schedule& s, const Tensor& result, const Tensor& a, const Tensor& b) {
    for (const Stage& stage : producers_of(s, s[result]))
        if (stage.id != s[result].id && !s.reduces(stage) && s.name(stage) != a.name() && s.name(stage) != b.name())
            s.inline_stage(stage);
}

/// A role loads both operands beside those that multiply.
void share_roles(Schedule& s, const Stage& result, const std::vector<StageRef>& operands,
                 const ConvolutionTiles& tiles) {
    s.roles(loading_roles(
        s.target(), operands, result,
        {.warpgroups = tiles.warpgroups * tiles.ping_pong, .loading = 40, .most = 240, .ping_pong = tiles.ping_pong}));
}

void multiply(Schedule& s, const Stage& result, const Stage& sums, const std::vector<StageRef>& operands,
              const Loop& over, const MmaLoops& loops, const ConvolutionTiles& tiles) {
    s.mma(sums, wgmma, loops);
    s.pipeline(over, {.stages = tiles.stages, .in_flight = 1});
    share_roles(s, result, operands, tiles);
}

/// The loops of pixels in which the distance from one to the next is a stride, images first; what is between, the
/// phases, comes before them: pixels of a phase have the same taps.
std::vector<Loop> phases_of(Schedule& s, std::vector<Loop>& pixels, int64_t stride) {
    std::vector<Loop> phases, order;
    if (stride == 1) return phases;
    for (size_t d = 1; d < pixels.size(); ++d) {
        auto [pixel, phase] = s.split(pixels[d], stride, Tail::Mask, {"", "phase"});
        pixels[d] = pixel;
        phases.push_back(phase);
    }
    order = phases;
    order.insert(order.end(), pixels.begin(), pixels.end());
    s.order(order);
    return phases;
}

}  // namespace

namespace {

/// The loop over groups, if there are several; the given one becomes that over what one has, in tiles.
std::vector<Loop> groups_of(Schedule& s, Loop& loop, int64_t groups, int64_t tile) {
    if (groups == 1) return {};
    const int64_t extent = require_constant(s.extent(loop)), each = extent / groups;
    if (extent % groups != 0 || each % tile != 0)
        throw_error(
            Error,
            "convolution: {} rows or columns in {} groups, which tiles of {} do not divide; choose a divisor of {}",
            extent, groups, tile, each);
    auto [group, inside] = s.split(loop, each, {"group", "in_group"});
    loop = inside;
    return {group};
}

/// The reduce loops beside that of the terms.
std::vector<Loop> taps_of(const Schedule& s, const StageRef& sums, const Loop& terms) {
    std::vector<Loop> loops = s.all_loops(sums), others = s.data_loops(sums);
    others.push_back(terms);
    std::erase_if(loops, [&](const Loop& loop) {
        return std::ranges::any_of(others, [&](const Loop& other) { return other.id == loop.id; });
    });
    return loops;
}

/// Sums of parts of the terms, `length` each, as a stage of its own; the result adds them up in order.
Stage sums_of_parts(Schedule& s, const Tensor& result, const Loop& terms, int64_t length) {
    const Stage sums = s.rfactor(result, s.split(terms, length, Tail::Mask, {"part", "in_part"})[0]);
    auto [block, inside] = s.split(s.fuse(s.data_loops(result), "all"), 256, Tail::Mask, {"block", "t"});
    s.bind(block, grid.x);
    s.bind(inside, thread);
    return sums;
}

/// What the unit computes over the tile of `blocks`, rows shared by warpgroups: a step of the pipeline for a part of
/// the channels of a tap. With phases, which have as many taps as their places say, steps are of one tap.
struct UnitLoops {
    Loop step;
    MmaLoops mma;
};
UnitLoops unit_loops(Schedule& s, std::vector<Loop> order, const Loop& row, const Loop& n, const Loop& channels,
                     std::vector<Loop> taps, bool has_phases, const ConvolutionTiles& tiles) {
    auto [warpgroup_row, m] = s.split(row, tiles.rows / tiles.warpgroups, {"warpgroup_m", "m"});
    auto [channel, k] = s.split(channels, tiles.terms, Tail::Mask, {"channel", "k"});
    taps.insert(has_phases ? taps.end() : taps.begin(), channel);
    order.push_back(warpgroup_row);
    order.insert(order.end(), taps.begin(), taps.end());
    order.insert(order.end(), {m, n, k});
    s.order(order);
    s.bind(warpgroup_row, warpgroup);
    return {has_phases ? channel : s.fuse(taps, "step"), {.m = m, .n = n, .k = k}};
}

/// Sums of a whole tile stay in registers; the result takes them one piece of columns after another, each of which
/// leaves as a box while the next tile is summed. Returns the loop over pieces.
Loop leave_in_pieces(Schedule& s, const Stage& sums, std::vector<Loop> order, const Loop& row, const Loop& n,
                     const ConvolutionTiles& tiles) {
    auto [piece, column] = s.split(n, std::min(tiles.box_columns, tiles.columns), {"piece", "column"});
    auto [warpgroup_row, m] = s.split(row, tiles.rows / tiles.warpgroups, {"warpgroup_m", "m"});
    s.at(sums, order.back());
    s.set_memory(sums, Memory::Registers);
    order.insert(order.end(), {piece, warpgroup_row, m, column});
    s.order(order);
    s.bind(warpgroup_row, warpgroup);
    return piece;
}

/// The product of windows and filters, both of which a role loads, with what is `loaded` beside them.
void load_and_multiply(Schedule& s, const Stage& result, const Stage& sums, const Tensor& windows,
                       const Tensor& filters, const UnitLoops& unit, std::vector<StageRef> loaded,
                       const ConvolutionTiles& tiles) {
    loaded.emplace_back(s.stage(sums, windows, Memory::Shared, unit.step, As::Matrix));
    loaded.emplace_back(s.stage(sums, filters, Memory::Shared, unit.step));
    multiply(s, result, sums, loaded, unit.step, unit.mma, tiles);
}

/// The same of windows that are made of the image: its elements lie in shared memory as the unit's loops run, and rows
/// of a step are made in registers while the unit multiplies those of the step before.
void load_make_and_multiply(Schedule& s, const Tensor& result, const Stage& sums, const Tensor& windows,
                            const Tensor& image, const Tensor& filters, const UnitLoops& unit,
                            std::vector<StageRef> loaded, const ConvolutionTiles& tiles) {
    const Stage rows = s.stage(sums, windows, Memory::Registers, unit.step, As::Matrix);
    s.inline_stage(windows);
    loaded.emplace_back(s.stage(rows, image, Memory::Shared, unit.step, As::Matrix));
    loaded.emplace_back(s.stage(sums, filters, Memory::Shared, unit.step));
    s.mma(sums, wgmma, unit.mma);
    s.pipeline(unit.step, {.stages = tiles.stages});
    s.delay(sums, unit.step, {.before = rows});
    share_roles(s, s[result], loaded, tiles);
}

/// Pieces of the result leave as boxes, and those of what its elements are made of beside the sums arrive so. Returns
/// the latter.
std::vector<StageRef> pass_pieces(Schedule& s, const Tensor& result, const Loop& piece,
                                  const std::vector<Tensor>& beside, int stages) {
    s.via(s.stage(result, Memory::Shared, piece), Copy::Tma);
    std::vector<StageRef> arriving;
    for (const Tensor& operand : beside)
        arriving.emplace_back(s.stage(result, operand, Memory::Shared, piece, As::Matrix));
    if (!arriving.empty()) stages = 2;
    if (stages > 1) s.pipeline(piece, {.stages = stages});
    return arriving;
}

}  // namespace

Loop schedule_windows(Schedule& s, const Tensor& result, const Tensor& windows, const Tensor& filters, int channels,
                      int64_t stride, const ConvolutionTiles& tiles, const WindowNeighbours& neighbours, int64_t groups,
                      std::source_location where) {
    CalledFrom caller(where);
    inline_elements(s, result, windows, filters);
    Stage sums = s[result];
    const int dimensions = static_cast<int>(s.data_loops(result).size());
    if (tiles.box_columns > 0) {
        if (dimensions > 2) s.join_axes(result, 0, dimensions - 2);
        sums = s.accumulators(result);
    } else if (tiles.parts > 1) {
        const Loop all = s.reduce(result, channels);
        const int64_t steps = divided(require_constant(s.extent(all)), tiles.terms);
        sums = sums_of_parts(s, result, all, divided(steps, tiles.parts) * tiles.terms);
    }
    const Loop terms = s.reduce(sums, channels);
    const std::vector<Loop> taps = taps_of(s, sums, terms);
    std::vector<Loop> pixels = s.data_loops(tiles.parts > 1 ? sums : s[result]), part;
    if (tiles.parts > 1) part.push_back(pixels[0]), pixels.erase(pixels.begin());
    Loop columns = pixels.back();
    const std::vector<Loop> group = groups_of(s, columns, groups, tiles.columns);
    pixels.pop_back();
    std::vector<Loop> blocks = phases_of(s, pixels, stride);
    blocks.insert(blocks.begin(), part.begin(), part.end());
    auto [tile, row] =
        s.split(pixels.size() > 1 ? s.fuse(pixels, "pixel") : pixels[0], tiles.rows, Tail::Mask, {"tile", "row"});
    auto [column_tile, n] = s.split(columns, tiles.columns, Tail::Mask, {"column_tile", "n"});
    blocks.push_back(tile);
    blocks.insert(blocks.end(), group.begin(), group.end());
    blocks.push_back(column_tile);
    UnitLoops unit;
    std::vector<StageRef> loaded;  // by the role that loads
    Loop last = column_tile;
    if (tiles.box_columns > 0) {
        last = leave_in_pieces(s, sums, blocks, row, n, tiles);
        const std::vector<Loop> own = s.data_loops(sums);
        const Loop own_terms = s.reduce(sums, channels);
        unit = unit_loops(s, {}, own[0], own[1], own_terms, taps_of(s, sums, own_terms), false, tiles);
        for (const StageRef& follower : neighbours.behind) s.at(follower, last);
        loaded = pass_pieces(s, result, last, neighbours.beside, tiles.box_stages);
    } else {
        unit = unit_loops(s, blocks, row, n, terms, taps, stride > 1, tiles);
        for (const StageRef& follower : neighbours.behind) s.at(follower, last);
    }
    s.persistent(blocks);
    if (neighbours.image.defined())
        load_make_and_multiply(s, result, sums, windows, neighbours.image, filters, unit, loaded, tiles);
    else
        load_and_multiply(s, tiles.parts > 1 ? sums : s[result], sums, windows, filters, unit, loaded, tiles);
    return last;
}

namespace {

/// Of the loops between those of rows and columns, the last ones with so many iterations.
std::vector<Loop>::iterator first_together(const Schedule& s, std::vector<Loop>& data, int64_t iterations) {
    auto first = data.end() - 1;
    for (int64_t count = 1; count < iterations && first - 1 > data.begin(); --first)
        count *= require_constant(s.extent(*(first - 1)));
    return first;
}

}  // namespace

void schedule_sum_of_pixels(Schedule& s, const Tensor& result, const Tensor& a, const Tensor& b,
                            const ConvolutionTiles& tiles, int64_t groups, std::source_location where) {
    CalledFrom caller(where);
    inline_elements(s, result, a, b);
    std::vector<Loop> pixels = s.all_loops(result);
    pixels.erase(pixels.begin(), pixels.begin() + static_cast<std::ptrdiff_t>(s.data_loops(result).size()));
    Loop pixel = s.fuse(pixels, "pixel");
    Stage sums = s[result];
    if (tiles.parts > 1) {
        const int64_t steps = divided(require_constant(s.extent(pixel)), tiles.terms);
        sums = sums_of_parts(s, result, pixel, divided(steps, tiles.parts) * tiles.terms);
    }
    std::vector<Loop> data = s.data_loops(sums), outer;
    if (tiles.parts > 1) {
        outer.push_back(data[0]);
        data.erase(data.begin());
    }
    const std::vector<Loop> group = groups_of(s, data[0], groups, tiles.rows);
    auto [row_tile, row] = s.split(data[0], tiles.rows, Tail::Mask, {"row_tile", "row"});
    const bool share_rows = tiles.rows >= tiles.warpgroups * rows_of_unit;  // else taps
    auto [warpgroup_row, m] =
        s.split(row, share_rows ? tiles.rows / tiles.warpgroups : tiles.rows, {"warpgroup_m", "m"});
    auto [column_tile, n] = s.split(data.back(), tiles.columns, Tail::Mask, {"column_tile", "n"});
    auto [step, k] = s.split(tiles.parts > 1 ? s.reduce(sums) : pixel, tiles.terms, Tail::Mask, {"step", "k"});
    const auto together = first_together(s, data, tiles.taps), summed = together + (share_rows ? 0 : 1);
    outer.insert(outer.end(), group.begin(), group.end());
    outer.insert(outer.end(), {row_tile, column_tile});
    outer.insert(outer.end(), data.begin() + 1, together);
    std::vector<Loop> shared(together, summed), order = outer;
    shared.push_back(warpgroup_row);
    order.insert(order.end(), shared.begin(), shared.end());
    order.push_back(step);
    order.insert(order.end(), summed, data.end() - 1);
    order.insert(order.end(), {m, n, k});
    s.order(order);
    s.persistent(outer);
    for (const Loop& loop : shared) s.bind(loop, warpgroup);
    const Stage left = s.stage(sums, a, Memory::Shared, step, As::Matrix),
                right = s.stage(sums, b, Memory::Shared, step, As::Matrix);
    multiply(s, sums, sums, {left, right}, step, {.m = m, .n = n, .k = k}, tiles);
}

Schedule convolution_schedule(const Convolution& c, const ConvolutionShape& shape, ConvolutionPass pass,
                              const std::optional<ConvolutionTiles>& tiles, const Target& target,
                              std::source_location where) {
    CalledFrom caller(where);
    if (!takes_warpgroups(shape, target)) return choose_schedule({c.result}, target, where);
    const ConvolutionTiles chosen = tiles ? *tiles : convolution_tiles(c, pass, target);
    Schedule s({c.result}, target);
    if (pass == ConvolutionPass::WeightGradient)
        schedule_sum_of_pixels(s, c.product, c.windows, c.other, chosen, c.groups);
    else
        schedule_windows(s, c.product, c.windows, c.other, c.terms_axis, c.phases, chosen, {}, c.groups);
    for (const Tensor& copy : c.copies) schedule_dense_copy(s, copy);
    if (!c.result.same(c.product)) schedule_dense_copy(s, c.result);
    return s;
}

Schedule convolution_schedule(const NamedConvolution& named, const Target& target, std::source_location where) {
    CalledFrom caller(where);
    const ConvolutionShape& shape = named.shape;
    std::optional<HaloTiles> halo = named.halo;
    if (halo && takes_warpgroups(shape, target))
        return halo_schedule(declare_halo_convolution(shape, named.pass, halo->places), *halo, target);
    const Convolution c = declare_convolution(shape, named.pass);
    if (!named.tiles && takes_warpgroups(shape, target)) {
        const ConvolutionTiles tiles = convolution_tiles(c, named.pass, target);
        halo = halo_tiles(shape, named.pass, convolution_cycles(c, named.pass, tiles, target), target);
        if (halo) return halo_schedule(declare_halo_convolution(shape, named.pass, halo->places), *halo, target);
    }
    return convolution_schedule(c, shape, named.pass, named.tiles, target);
}

}  // namespace tw::schedules

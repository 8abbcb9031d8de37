#include "schedules/convolution.h"

#include <algorithm>

#include "schedules/choose.h"
#include "schedules/elementwise.h"
#include "schedules/loading_roles.h"
#include "schedules/producers.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
bool takes_warpgroups(const ConvolutionShape& s, const Target& target) {
    return target.has_wgmma && target.has_tma && s.images * s.height * s.width * s.channels * s.filters > 0 &&
           s.reads_image();
}

bool ConvolutionForm::has_phases() const {
    return std::ranges::any_of(phases, [](int64_t each) { return each > 1; });
}

ConvolutionForm form_of(const Convolution& c, const ConvolutionShape& shape, ConvolutionPass pass) {
    ConvolutionForm form{.sums_pixels = pass == ConvolutionPass::WeightGradient,
                         .extents = c.extents,
                         .result = shape.type,
                         .terms_axis = c.terms_axis};
    if (c.phases > 1) form.phases = {1, c.phases, c.phases};
    if (c.extents.products == shape.kernel_h * shape.kernel_w)
        form.taps = {shape.kernel_h, shape.kernel_w};
    else
        form.taps = {c.extents.products};
    return form;
}

namespace {

constexpr int64_t rows_of_unit = 64;  // of a wgmma

/// Casts of adjoints and the like are made where they are read; operands stay.
void inline_elements(Schedule& s, const Tensor& result, const Tensor& a, const Tensor& b) {
    for (const Stage& stage : producers_of(s, s[result]))
        if (stage.id != s[result].id && !s.reduces(stage) && s.name(stage) != a.name() && s.name(stage) != b.name())
            s.inline_stage(stage);
}

/// The role that loads both operands beside those that multiply.
void multiply(Schedule& s, const Stage& result, const Stage& sums, const std::vector<StageRef>& operands,
              const Loop& over, const MmaLoops& loops, const ConvolutionTiles& tiles) {
    s.mma(sums, wgmma, loops);
    s.pipeline(over, {.stages = tiles.stages, .in_flight = 1});
    s.roles(loading_roles(
        s.target(), operands, result,
        {.warpgroups = tiles.warpgroups * tiles.ping_pong, .loading = 40, .most = 240, .ping_pong = tiles.ping_pong}));
}

/// The loops of pixels in which the distance from one to the next is that of a phase; what is between, the phases,
/// comes before them: pixels of a phase have the same taps.
std::vector<Loop> phases_of(Schedule& s, std::vector<Loop>& pixels, const ConvolutionForm& form) {
    std::vector<Loop> phases, order;
    if (!form.has_phases()) return phases;
    for (size_t d = 0; d < pixels.size(); ++d) {
        if (form.phases[d] == 1) continue;
        auto [pixel, phase] = s.split(pixels[d], form.phases[d], Tail::Mask, {"", "phase"});
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

/// The reduce loops beside that of the terms.
std::vector<Loop> taps_of(const Schedule& s, const StageRef& sums, const Loop& terms) {
    std::vector<Loop> loops = s.all_loops(sums);
    loops.erase(loops.begin(), loops.begin() + static_cast<std::ptrdiff_t>(s.data_loops(sums).size()));
    std::erase_if(loops, [&](const Loop& loop) { return loop.id == terms.id; });
    return loops;
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
    const int64_t together = tiles.box_columns > 0 ? std::min(tiles.box_columns, tiles.columns) : tiles.columns;
    auto [piece, column] = s.split(n, together, {"piece", "column"});
    auto [warpgroup_row, m] = s.split(row, tiles.rows / tiles.warpgroups, {"warpgroup_m", "m"});
    s.at(sums, order.back());
    s.set_memory(sums, Memory::Registers);
    order.insert(order.end(), {piece, warpgroup_row, m, column});
    s.order(order);
    s.bind(warpgroup_row, warpgroup);
    return piece;
}

/// Their stage, that of the result's reduction, or, where it leaves in pieces, one of their own.
Stage sums_of(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles) {
    const Tensor& result = product.result;
    const bool is_apart = product.sums.defined();
    if (!is_apart && tiles.box_columns == 0) return s[result];
    if (result.rank() > 2) s.join_axes(result, 0, result.rank() - 2);
    if (!is_apart) return s.accumulators(result);
    if (result.rank() > 2) s.join_axes(product.sums, 0, result.rank() - 2);
    return s[product.sums];
}

}  // namespace

void schedule_windows(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles,
                      std::source_location where) {
    CalledFrom caller(where);
    const Tensor& result = product.result;
    const ConvolutionForm& form = product.form;
    const Stage sums = sums_of(s, product, tiles);
    const bool in_pieces = sums.id != s[result].id;
    const Loop terms = s.reduce(sums, form.terms_axis);
    const std::vector<Loop> taps = taps_of(s, sums, terms);
    std::vector<Loop> pixels = s.data_loops(result);
    Loop columns = pixels.back();
    pixels.pop_back();
    std::vector<Loop> blocks = phases_of(s, pixels, form);
    if (form.group > 0) {
        auto [group, column] = s.split(columns, form.group, {"group", "column"});
        columns = column;
        blocks.push_back(group);
    }
    auto [tile, row] =
        s.split(pixels.size() > 1 ? s.fuse(pixels, "pixel") : pixels[0], tiles.rows, Tail::Mask, {"tile", "row"});
    auto [column_tile, n] = s.split(columns, tiles.columns, Tail::Mask, {"column_tile", "n"});
    blocks.insert(blocks.end(), {tile, column_tile});
    UnitLoops unit;
    if (in_pieces) {
        const Loop piece = leave_in_pieces(s, sums, blocks, row, n, tiles);
        const std::vector<Loop> own = s.data_loops(sums);
        const Loop own_terms = s.reduce(sums, form.terms_axis);
        unit = unit_loops(s, {}, own[0], own[1], own_terms, taps_of(s, sums, own_terms), false, tiles);
        if (tiles.box_columns > 0) s.via(s.stage(result, Memory::Shared, piece), Copy::Tma);
    } else {
        unit = unit_loops(s, blocks, row, n, terms, taps, form.has_phases(), tiles);
    }
    s.persistent(blocks);
    const Stage left = s.stage(sums, product.a, Memory::Shared, unit.step, As::Matrix),
                right = s.stage(sums, product.b, Memory::Shared, unit.step);
    multiply(s, s[result], sums, {left, right}, unit.step, unit.mma, tiles);
}

namespace {

/// Of the loops over taps the last ones with so many iterations.
std::vector<Loop>::const_iterator first_together(const Schedule& s, const std::vector<Loop>& taps, int64_t iterations) {
    auto first = taps.end();
    for (int64_t count = 1; count < iterations && first > taps.begin(); --first)
        count *= require_constant(s.extent(*(first - 1)));
    return first;
}

/// The loops of a sum's elements: blocks around those of rows and columns.
struct SumLoops {
    std::vector<Loop> outer;  ///< parts and groups
    Loop rows, columns;
    std::vector<Loop> taps;  ///< all others
};
SumLoops sum_loops(Schedule& s, const Stage& sums, const ConvolutionForm& form, bool has_parts) {
    SumLoops loops;
    std::vector<Loop> data = s.data_loops(sums);
    if (has_parts) {
        loops.outer.push_back(data[0]);
        data.erase(data.begin());
    }
    loops.columns = data.back();
    data.pop_back();
    const auto rows = data.begin() + form.rows_axis;
    loops.rows = *rows;
    data.erase(rows);
    loops.taps = data;
    if (form.group > 0) {
        auto [group, row] = s.split(loops.rows, form.group, {"group", "row"});
        loops.rows = row;
        loops.outer.push_back(group);
    }
    return loops;
}

/// All reduce axes as one, and, where they are taken apart, the stage that sums their parts.
struct SummedPixels {
    Stage sums;
    Loop pixel;
};
SummedPixels fuse_pixels(Schedule& s, const Tensor& result, const ConvolutionTiles& tiles) {
    std::vector<Loop> pixels = s.all_loops(result);
    pixels.erase(pixels.begin(), pixels.begin() + static_cast<std::ptrdiff_t>(s.data_loops(result).size()));
    Loop pixel = pixels.size() > 1 ? s.fuse(pixels, "pixel") : pixels[0];
    if (tiles.parts == 1) return {s[result], pixel};
    const int64_t steps = divided(require_constant(s.extent(pixel)), tiles.terms);
    const int64_t length = divided(steps, tiles.parts) * tiles.terms;
    const Stage sums = s.rfactor(result, s.split(pixel, length, Tail::Mask, {"part", "in_part"})[0]);
    auto [block, inside] = s.split(s.fuse(s.data_loops(result), "all"), 256, Tail::Mask, {"block", "t"});
    s.bind(block, grid.x);
    s.bind(inside, thread);
    return {sums, s.reduce(sums)};
}

}  // namespace

void schedule_sum_of_pixels(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles,
                            std::source_location where) {
    CalledFrom caller(where);
    const auto [sums, pixel] = fuse_pixels(s, product.result, tiles);
    auto [outer, rows, columns, taps] = sum_loops(s, sums, product.form, tiles.parts > 1);
    auto [row_tile, row] = s.split(rows, tiles.rows, Tail::Mask, {"row_tile", "row"});
    const bool share_rows = tiles.rows >= tiles.warpgroups * rows_of_unit;  // else taps
    auto [warpgroup_row, m] =
        s.split(row, share_rows ? tiles.rows / tiles.warpgroups : tiles.rows, {"warpgroup_m", "m"});
    auto [column_tile, n] = s.split(columns, tiles.columns, Tail::Mask, {"column_tile", "n"});
    auto [step, k] = s.split(pixel, tiles.terms, Tail::Mask, {"step", "k"});
    const auto together = first_together(s, taps, tiles.taps), summed = together + (share_rows ? 0 : 1);
    outer.insert(outer.end(), {row_tile, column_tile});
    outer.insert(outer.end(), taps.cbegin(), together);
    std::vector<Loop> shared(together, summed), order = outer;
    shared.push_back(warpgroup_row);
    order.insert(order.end(), shared.begin(), shared.end());
    order.push_back(step);
    order.insert(order.end(), summed, taps.cend());
    order.insert(order.end(), {m, n, k});
    s.order(order);
    s.persistent(outer);
    for (const Loop& loop : shared) s.bind(loop, warpgroup);
    const Stage left = s.stage(sums, product.a, Memory::Shared, step, As::Matrix),
                right = s.stage(sums, product.b, Memory::Shared, step, As::Matrix);
    multiply(s, sums, sums, {left, right}, step, {.m = m, .n = n, .k = k}, tiles);
}

Schedule convolution_schedule(const Convolution& c, const ConvolutionShape& shape, ConvolutionPass pass,
                              const std::optional<ConvolutionTiles>& tiles, const Target& target,
                              std::source_location where) {
    CalledFrom caller(where);
    if (!takes_warpgroups(shape, target)) return choose_schedule({c.result}, target, where);
    const WindowProduct product{.result = c.product, .a = c.windows, .b = c.other, .form = form_of(c, shape, pass)};
    const ConvolutionTiles chosen = tiles ? *tiles : *convolution_tiles(product.form, target);
    Schedule s({c.result}, target);
    inline_elements(s, c.product, c.windows, c.other);
    if (product.form.sums_pixels)
        schedule_sum_of_pixels(s, product, chosen);
    else
        schedule_windows(s, product, chosen);
    for (const Tensor& copy : c.copies) schedule_dense_copy(s, copy);
    if (!c.result.same(c.product)) schedule_dense_copy(s, c.result);
    return s;
}

}  // namespace tw::schedules

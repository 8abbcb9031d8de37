#include "schedules/convolution.h"

#include <algorithm>
#include <cstdlib>

#include "codegen/lower.h"
#include "dsl/differentiate.h"
#include "dsl/edit.h"
#include "schedules/choose.h"
#include "schedules/choose_windows.h"
#include "schedules/convolution_tilings.h"
#include "schedules/convolve.h"
#include "schedules/elementwise.h"
#include "schedules/loading_roles.h"
#include "schedules/producers.h"
#include "schedules/sum_of_parts.h"
#include "schedules/transposed.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {

Tensor plain_convolution(const ConvolutionShape& s, ConvolutionPass pass, const Tensor& bias) {
    auto operand = [&](const char* name, const Shape& shape) {
        return input(name, s.type, in_layout(s.layout, shape));
    };
    const Tensor x = operand("x", {s.images, s.height, s.width, s.channels}),
                 w = operand("w", {s.filters, s.kernel_h, s.kernel_w, s.channels / s.groups});
    const Tensor y = convolve("y", x, w, bias,
                              {.stride = {s.stride},
                               .dilation = {s.dilation},
                               .padding = {s.padding},
                               .groups = s.groups,
                               .layout = s.layout});
    if (pass == ConvolutionPass::Forward) return y;
    const Tensor dy = operand("dy", {s.images, s.rows(), s.columns(), s.filters});
    return gradients(y, dy, {pass == ConvolutionPass::DataGradient ? x : w})[0];
}

bool takes_warpgroups(const ConvolutionShape& s, const Target& target) {
    return target.has_wgmma && target.has_tma && s.images * s.height * s.width * s.channels * s.filters > 0 &&
           s.reads_image();
}

bool ConvolutionForm::phases_share_pixels() const {
    double taps = extents.taps;
    for (const int64_t each : phases) taps *= as_double(each);
    return has_phases() && taps > 1;
}

bool ConvolutionForm::has_phases() const {
    return std::ranges::any_of(phases, [](int64_t each) { return each > 1; });
}

WindowProduct product_of(const Convolution& c) {
    const auto product = window_product(c.product, {c.result});
    internal_check(product.has_value(), "'{}' is declared as no sum of products over windows", c.product.name());
    return *product;
}

namespace {

/// Casts of adjoints and the like are made where they are read; operands stay.
void inline_elements(Schedule& s, const Convolution& c) {
    for (const Stage& stage : producers_of(s, s[c.result]))
        if (stage.id != s[c.result].id && !s.reduces(stage) && s.name(stage) != c.windows.name() &&
            s.name(stage) != c.other.name())
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

/// The loop over groups, if there are several; the given one becomes that over what one has, in tiles.
std::vector<Loop> groups_of(Schedule& s, Loop& loop, int64_t each, int64_t tile) {
    if (each == 0) return {};
    if (each % tile != 0)
        throw_error(Error,
                    "convolution: groups of {} rows or columns, which tiles of {} do not divide; choose a divisor",
                    each, tile);
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
    const int64_t parts = divided(require_constant(s.extent(terms)), length);
    const Stage sums = s.rfactor(result, s.split(terms, length, Tail::Mask, {"part", "in_part"})[0]);
    schedule_sum_of_parts(s, result, parts);
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
    const int64_t together = tiles.box_columns > 0 ? std::min(tiles.box_columns, tiles.columns) : tiles.columns;
    auto [piece, column] = s.split(n, together, {"piece", "column"});
    auto [warpgroup_row, m] = s.split(row, tiles.rows / tiles.warpgroups, {"warpgroup_m", "m"});
    s.at({sums}, order.back(), Memory::Registers);
    order.insert(order.end(), {piece, warpgroup_row, m, column});
    s.order(order);
    s.bind(warpgroup_row, warpgroup);
    return piece;
}

/// The product of windows and filters, both of which a role loads, with what is `loaded` beside them.
void load_and_multiply(Schedule& s, const Stage& result, const Stage& sums, const Tensor& windows,
                       const Tensor& filters, As copied, const UnitLoops& unit, std::vector<StageRef> loaded,
                       const ConvolutionTiles& tiles) {
    loaded.emplace_back(s.stage(sums, windows, Memory::Shared, unit.step, As::Matrix));
    loaded.emplace_back(s.stage(sums, filters, Memory::Shared, unit.step, copied));
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
                                  const WindowNeighbours& neighbours, int stages) {
    s.via(s.stage(result, Memory::Shared, piece), Copy::Tma);
    std::vector<StageRef> arriving;
    for (const Tensor& operand : neighbours.beside)
        arriving.emplace_back(s.stage(result, operand, Memory::Shared, piece, As::Matrix));
    for (const Tensor& operand : neighbours.beside_behind)
        for (const StageRef& reader : neighbours.behind)
            arriving.emplace_back(s.stage(reader, operand, Memory::Shared, piece, As::Matrix));
    if (!arriving.empty()) stages = 2;
    if (stages > 1) s.pipeline(piece, {.stages = stages});
    return arriving;
}

/// The stage that sums, and the loops of its pixels, or, where the result leaves in pieces, of the result's.
struct SummedWindows {
    Stage sums;
    bool in_pieces = false;
    std::vector<Loop> part = {}, pixels = {};  ///< parts, or images of which tiles have none but whole ones
    Loop columns = {};
};
/// Of a result whose columns stand before pixels: tiles end with an image.
SummedWindows sum_turned_windows(Schedule& s, const WindowProduct& product) {
    const int last = product.result.rank() - 1;
    if (last > 2) s.join_axes(product.result, 2, last);
    s.join_axes(product.sums, 0, last - 1);
    const Stage sums = s.accumulators(product.sums);
    s.inline_stage(product.sums);
    const std::vector<Loop> loops = s.data_loops(product.result);
    return {.sums = sums, .in_pieces = true, .part = {loops[0]}, .pixels = {loops[2]}, .columns = loops[1]};
}
SummedWindows sum_windows(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles) {
    if (product.form.turns_result) return sum_turned_windows(s, product);
    const Tensor& result = product.result;
    const int dimensions = static_cast<int>(s.data_loops(result).size());
    const bool is_apart = product.sums.defined();
    SummedWindows windows{.sums = s[result], .in_pieces = is_apart || tiles.box_columns > 0};
    if (windows.in_pieces) {
        if (dimensions > 2) s.join_axes(result, 0, dimensions - 2);
        if (is_apart && dimensions > 2) s.join_axes(product.sums, 0, dimensions - 2);
        windows.sums = is_apart ? s[product.sums] : s.accumulators(result);
    } else if (tiles.parts > 1) {
        const Loop terms = s.reduce(result, product.form.terms_axis);
        const int64_t steps = divided(require_constant(s.extent(terms)), tiles.terms);
        windows.sums = sums_of_parts(s, result, terms, divided(steps, tiles.parts) * tiles.terms);
    }
    windows.pixels = s.data_loops(tiles.parts > 1 ? windows.sums : s[result]);
    windows.columns = windows.pixels.back();
    windows.pixels.pop_back();
    if (tiles.parts > 1) {
        windows.part = {windows.pixels[0]};
        windows.pixels.erase(windows.pixels.begin());
    }
    return windows;
}

}  // namespace

namespace {

/// Phases read the same pixels: so many tiles of one before those of the next, which finds them in the cache. The
/// divisor nearest to the number of multiprocessors; 0: there is none of that order, or all are no more.
int64_t tiles_together(int64_t tiles, const Target& target) {
    const int64_t wanted = target.multiprocessors;
    int64_t best = 0;
    for (int64_t each = divided(wanted, 2); each <= 2 * wanted && each < tiles; ++each)
        if (tiles % each == 0 && (best == 0 || std::abs(each - wanted) < std::abs(best - wanted))) best = each;
    return best;
}

}  // namespace

Loop schedule_windows(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles,
                      const WindowNeighbours& neighbours, std::source_location where) {
    CalledFrom caller(where);
    require_convolution_tiles(tiles, where);
    const Tensor& result = product.result;
    const ConvolutionForm& form = product.form;
    auto [sums, in_pieces, blocks, pixels, columns] = sum_windows(s, product, tiles);
    const Loop terms = s.reduce(sums, form.terms_axis);
    const std::vector<Loop> taps = taps_of(s, sums, terms), phases = phases_of(s, pixels, form),
                            group = groups_of(s, columns, form.group, tiles.columns);
    auto [tile, row] =
        s.split(pixels.size() > 1 ? s.fuse(pixels, "pixel") : pixels[0], tiles.rows, Tail::Mask, {"tile", "row"});
    const int64_t together =
        form.phases_share_pixels() ? tiles_together(require_constant(s.extent(tile)), s.target()) : 0;
    if (together > 0) {
        auto [round, in_round] = s.split(tile, together, {"round", "tile"});
        blocks.push_back(round);
        tile = in_round;
    }
    blocks.insert(blocks.end(), phases.begin(), phases.end());
    auto [column_tile, n] = s.split(columns, tiles.columns, Tail::Mask, {"column_tile", "n"});
    blocks.push_back(tile);
    blocks.insert(blocks.end(), group.begin(), group.end());
    blocks.push_back(column_tile);
    UnitLoops unit;
    std::vector<StageRef> loaded;  // by the role that loads
    Loop last = column_tile;
    if (in_pieces) {
        last = leave_in_pieces(s, sums, blocks, row, n, tiles);
        const std::vector<Loop> own = s.data_loops(sums);
        const Loop own_terms = s.reduce(sums, form.terms_axis);
        unit = unit_loops(s, {}, own[0], own[1], own_terms, taps_of(s, sums, own_terms), false, tiles);
    } else {
        unit = unit_loops(s, blocks, row, n, terms, taps, form.has_phases(), tiles);
    }
    for (const StageRef& follower : neighbours.behind) s.at(follower, last);
    if (in_pieces && tiles.box_columns > 0) loaded = pass_pieces(s, result, last, neighbours, tiles.box_stages);
    s.persistent(blocks);
    if (neighbours.image.defined())
        load_make_and_multiply(s, result, sums, product.a, neighbours.image, product.b, unit, loaded, tiles);
    else
        load_and_multiply(s, tiles.parts > 1 ? sums : s[result], sums, product.a, product.b,
                          form.pads_filters ? As::Matrix : As::Tensor, unit, loaded, tiles);
    return last;
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
SumLoops sum_loops(Schedule& s, const Stage& sums, const ConvolutionForm& form, bool has_parts, int64_t tile) {
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
    const std::vector<Loop> group = groups_of(s, loops.rows, form.group, tile);
    loops.outer.insert(loops.outer.end(), group.begin(), group.end());
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
    const Stage sums = sums_of_parts(s, result, pixel, length);
    return {sums, s.reduce(sums)};
}

}  // namespace

void schedule_sum_of_pixels(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles,
                            std::source_location where) {
    CalledFrom caller(where);
    require_convolution_tiles(tiles, where);
    const auto [sums, pixel] = fuse_pixels(s, product.result, tiles);
    auto [outer, rows, columns, taps] = sum_loops(s, sums, product.form, tiles.parts > 1, tiles.rows);
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

namespace {

Schedule with_tiles(const Convolution& c, const WindowProduct& product, const ConvolutionTiles& tiles,
                    const Target& target) {
    Schedule s({c.result}, target);
    const std::vector<Tensor> stored{c.result, c.windows, c.other};
    inline_elements(s, c);
    // First what reads the product, which may leave through shared memory, so that readers read a copy.
    if (!c.result.same(c.product)) schedule_copy(s, c.result, stored);
    schedule_window_product(s, product, tiles);
    for (const Tensor& copy : c.copies) schedule_copy(s, copy, stored);
    return s;
}

}  // namespace

Schedule convolution_schedule(const Convolution& c, const ConvolutionShape& shape,
                              const std::optional<ConvolutionTiles>& tiles, const Target& target,
                              std::source_location where) {
    CalledFrom caller(where);
    if (!takes_warpgroups(shape, target)) return choose_schedule({c.result}, target, where);
    const auto product = window_product(c.product, {c.result});
    if (!product) return choose_schedule({c.result}, target, where);
    if (tiles) return with_tiles(c, *product, *tiles, target);
    const std::vector<ConvolutionTiles> tilings = tilings_of(*product, target);
    for (size_t k = 0; k + 1 < tilings.size(); ++k) try {
            Schedule s = with_tiles(c, *product, tilings[k], target);
            if (product->form.sums_pixels) codegen::lower(s.tree(), target);  // which says whether parts may end so
            return s;
        } catch (const Error&) {  // the next ones ask for less
        }
    return tilings.empty() ? choose_schedule({c.result}, target, where)
                           : with_tiles(c, *product, tilings.back(), target);
}

Schedule convolution_schedule(const NamedConvolution& named, const Target& target, std::source_location where) {
    CalledFrom caller(where);
    const auto& [shape, pass, tiles, halo] = named;
    if (takes_warpgroups(shape, target)) {
        if (halo) return convolution_schedule(shape, pass, *halo, target);
        if (tiles) return convolution_schedule(shape, pass, *tiles, target);
        std::string left_out;
        if (auto chosen = choose_convolution(shape, pass, target, &left_out)) return std::move(chosen->schedule);
        if (!left_out.empty()) {
            Schedule s = choose_schedule({plain_convolution(shape, pass)}, target, where);
            Edit::note(s, "by the rules for any computation, without a tiling of its own" + left_out);
            return s;
        }
    }
    const bool is_plain = shape.layout == Layout::ChannelsFirst;  // which choose_schedule moves
    return choose_schedule({is_plain ? plain_convolution(shape, pass) : declare_convolution(shape, pass).result},
                           target, where);
}

}  // namespace tw::schedules

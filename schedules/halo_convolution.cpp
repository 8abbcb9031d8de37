#include "schedules/halo_convolution.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "schedules/halo_images.h"
#include "schedules/halo_weight_gradient.h"
#include "schedules/loading_roles.h"
#include "schedules/multiprocessor.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// What decides how much shared memory tiles take.
struct Sizes {
    int64_t taps, filters, terms, halo;
    int64_t filters_of_block(const HaloTiles& tiles) const {
        return std::min(filters, rows_of_unit * int64_t{tiles.warpgroups});
    }
};

Sizes sizes_of(const ConvolutionShape& s, const Images& of) {
    return {.taps = s.kernel_h * s.kernel_w, .filters = of.filters, .terms = of.terms(), .halo = of.halo()};
}

Sizes sizes_of(const HaloConvolution& c) {
    auto extent = [](const Tensor& tensor, size_t d) { return require_constant(tensor.shape()[d]); };
    return {.taps = extent(c.taps, 0) * extent(c.taps, 1),
            .filters = extent(c.result, 3),
            .terms = extent(c.raster, 1),
            .halo = extent(c.raster, 0) - extent(c.sums, 0)};
}

/// Places, by all threads, each of which makes a piece of 8 channels.
int64_t made_at_once(const HaloTiles& tiles, int64_t channels) { return 128 * tiles.warpgroups / (channels / piece); }

/// Of all but the pieces of an operand beside the sums.
int64_t shared_bytes_of(const Sizes& of, const HaloTiles& tiles, const HaloExtras& extras) {
    constexpr int64_t barriers = 1024;
    const int64_t filters = rows_of_unit * tiles.warpgroups,
                  weights = (tiles.weight_stages > 0 ? tiles.weight_stages * filters * terms_of_step(of.terms)
                                                     : of.taps * filters * of.terms) *
                            2,
                  images = !extras.image                              ? 0
                           : tiles.weight_stages > 0 && of.terms > 64 ? 2
                                                                      : 1,
                  whole = extras.image ? made_at_once(tiles, terms_of_step(of.terms)) : 8,
                  windows = (tiles.stages + images * tiles.ping_pong) * rounded_up(tiles.places + of.halo, whole) *
                            terms_of_step(of.terms) * 2,
                  leaving = tiles.ping_pong * tiles.leaving * (of.filters_of_block(tiles) + piece) * 2;
    // Two sums of each piece, and what warps add up; which places are pixels.
    const int64_t rows = tiles.places / tiles.leaving + 8 * tiles.warpgroups,
                  sums = extras.sums ? tiles.ping_pong * (of.filters_of_block(tiles) * 2 * rows + tiles.places) * 4 : 0;
    return weights + windows + leaving + sums + barriers;
}

/// Pieces of an operand beside the sums that are on their way: as many as two tiles have, where there is room, so that
/// the next tile's pixels are asked for while the last one's results leave.
int64_t stages_beside(const Sizes& of, const HaloTiles& tiles, const HaloExtras& extras, const Target& target) {
    constexpr int64_t most = 16;
    const int64_t bytes = tiles.leaving * of.filters_of_block(tiles) * 2,
                  room = (target.shared_bytes - shared_bytes_of(of, tiles, extras)) / bytes;
    return std::min({room, 2 * tiles.places / tiles.leaving, most});
}

/// Cycles that groups wait for pixels, which are asked for behind all pieces of the tile before: as these find room,
/// while results of the one before that leave.
double wait_for_pixels(const Sizes& of, const HaloTiles& tiles, double arrival, double leaving, const Target& target,
                       const HaloExtras& extras) {
    const double pieces = as_double(tiles.places / tiles.leaving),
                 ahead = as_double(stages_beside(of, tiles, extras, target)) - pieces;
    return std::max(0.0, arrival - leaving * ahead / pieces);
}

}  // namespace

bool takes_halo(const ConvolutionShape& s, ConvolutionPass pass, const HaloTiles& tiles, const Target& target,
                const HaloExtras& extras) {
    if (pass == ConvolutionPass::WeightGradient)
        return !extras.image && !extras.beside && !extras.sums && takes_halo_of_terms(s, tiles, target);
    if (!takes_warpgroups(s, target) || !is_raster(s)) return false;
    const Images of = images_of(s, pass);
    if (extras.image && of.filters % (rows_of_unit * tiles.warpgroups) != 0) return false;
    if (extras.beside && stages_beside(sizes_of(s, of), tiles, extras, target) < 2) return false;
    const bool has_rows = tiles.weight_stages > 0 || of.filters <= rows_of_unit;
    return has_rows && rounded_up(tiles.places + of.halo(), 8) <= most_pixels_of_box &&
           shared_bytes_of(sizes_of(s, of), tiles, extras) <= target.shared_bytes;
}

double halo_cycles(const ConvolutionShape& s, ConvolutionPass pass, const HaloTiles& tiles, const Target& target,
                   const HaloExtras& extras) {
    if (pass == ConvolutionPass::WeightGradient) return halo_cycles_of_terms(s, tiles, target);
    constexpr double start = 4000, made_a_cycle = 8, summed_a_cycle = 20, added_a_cycle = 40;  // elements
    const Images of = images_of(s, pass);
    const Sizes sizes = sizes_of(s, of);
    const int64_t filter_tiles = divided(of.filters, rows_of_unit * tiles.warpgroups),
                  units = divided(sizes.filters_of_block(tiles), rows_of_unit),
                  tiles_of_all = divided(of.places(), tiles.places) * filter_tiles;
    const double places = as_double(tiles.places), elements = as_double((tiles.places + of.halo()) * of.terms()),
                 weights = as_double(rows_of_unit * units) * as_double(of.terms() * sizes.taps),
                 bytes = (elements + (tiles.weight_stages > 0 ? weights : 0)) * 2,
                 rounds = as_double(divided(tiles_of_all, target.multiprocessors));
    const double results = places * as_double(sizes.filters_of_block(tiles)),
                 multiplied = weights * places / multiprocessor::products, arrived = bytes / multiprocessor::box_bytes;
    double cycles = std::max(multiplied, arrived + multiprocessor::box_latency / 2) +
                    (tiles.ping_pong > 1 ? multiprocessor::of_turn : multiprocessor::of_tile);
    if (extras.image) cycles += elements / made_a_cycle;
    if (extras.sums) cycles += results / summed_a_cycle;
    if (extras.beside)
        cycles += results / added_a_cycle +
                  wait_for_pixels(sizes, tiles, arrived + multiprocessor::box_latency, multiplied, target, extras);
    return start + rounds * cycles;
}

std::optional<HaloTiles> halo_tiles(const ConvolutionShape& s, ConvolutionPass pass, double tapwise,
                                    const Target& target, const HaloExtras& extras) {
    if (pass == ConvolutionPass::WeightGradient)
        return extras.image || extras.beside || extras.sums ? std::nullopt : halo_tiles_of_terms(s, tapwise, target);
    std::optional<HaloTiles> best;
    double least = tapwise;
    for (const auto& [places, leaving] : {std::pair(256, 32), {240, 48}, {224, 32}, {192, 48}, {160, 32}, {128, 32}}) {
        const HaloTiles tiles{.places = places, .leaving = leaving};
        if (!takes_halo(s, pass, tiles, target, extras)) continue;
        const double cycles = halo_cycles(s, pass, tiles, target, extras);
        if (cycles < least) least = cycles, best = tiles;
    }
    return best;
}

HaloConvolution declare_halo_convolution(const ConvolutionShape& shape, ConvolutionPass pass, int64_t places,
                                         const HaloNeighbours& neighbours, std::source_location where) {
    CalledFrom caller(where);
    user_check(is_raster(shape), where,
               "halo convolution: takes a stride of 1, one group, more than one tap, at most as much padding as taps "
               "reach, and multiples of 8 channels and filters; declare_convolution takes all others");
    user_check(places > 0, where, "halo convolution: tiles of {} places; there must be some", places);
    if (pass == ConvolutionPass::WeightGradient) return declare_halo_of_terms(shape, places, neighbours);
    const bool forward = pass == ConvolutionPass::Forward;
    const Images of = images_of(shape, pass);
    const int64_t width = of.raster_width(), height = of.raster_height(), terms = of.terms(),
                  whole = rounded_up(of.places(), places);
    HaloConvolution c{.height = height, .width = width};
    c.x = input(forward ? "x" : "dy", shape.type, {of.images, of.height, of.width, of.channels});
    c.w = input("w", shape.type, {shape.filters, shape.kernel_h, shape.kernel_w, shape.channels});
    c.raster = compute("raster", {whole + of.halo(), terms}, [&](Expr m, Expr channel) {
        return padded(c.x, 0)(m / width / height, m / width % height - of.padding_h, m % width - of.padding_w, channel);
    });
    c.image = c.raster, c.by_channel = neighbours.by_channel;
    if (neighbours.image)
        c.image = compute("image", {whole + of.halo(), terms}, [&](Expr m, Expr channel) {
            // Behind the last image, too: no pixel reads what lies below its own padding.
            const Expr is_inside = m / width % height >= of.padding_h && m % width >= of.padding_w;
            const Expr made = neighbours.image(cast(f32, c.raster(m, channel)), channel);
            return select(is_inside, cast(shape.type, made), cast(shape.type, constant(f32, 0.0)));
        });
    const Expr last_h = constant(Type::I64, shape.kernel_h - 1), last_w = constant(Type::I64, shape.kernel_w - 1);
    if (forward)
        c.taps = compute("taps", {shape.kernel_h, shape.kernel_w, of.filters, terms},
                         [&](Expr r, Expr t, Expr f, Expr k) { return padded(c.w, 0)(f, r, t, k); });
    else
        c.taps = compute("taps", {shape.kernel_h, shape.kernel_w, terms, of.filters},
                         [&](Expr r, Expr t, Expr k, Expr f) { return padded(c.w, 0)(k, last_h - r, last_w - t, f); });
    if (neighbours.zeros_beside)
        c.pixel = compute("pixel", {whole}, [&](Expr m) {
            const Expr is_pixel =
                m / width / height < of.images && m / width % height < of.rows && m % width < of.columns;
            return select(is_pixel, constant(Type::I32, 1), constant(Type::I32, 0));
        });
    if (neighbours.beside.defined())
        c.beside = compute(neighbours.beside.name() + "_raster", {whole, of.filters}, [&](Expr m, Expr f) {
            return padded(neighbours.beside, 0)(m / width / height, m / width % height, m % width, f);
        });
    Axis r = reduce_axis("r", shape.kernel_h), t = reduce_axis("s", shape.kernel_w), k = reduce_axis("c", terms);
    const Expr zero = constant(f32, 0.0);
    auto total = [&](const Expr& m, const Expr& f) {
        const Expr tap = forward ? c.taps(r, t, f, k) : c.taps(r, t, k, f);
        return sum(cast(f32, c.image(m + (r * width + t) * shape.dilation, k)) * cast(f32, tap), {r, t, k});
    };
    auto made = [&](const Expr& m, const Expr& f) {
        Expr value = total(m, f);
        if (neighbours.sum) value = neighbours.sum(value, f);
        if (neighbours.behind) value = neighbours.behind(value, f, cast(f32, c.beside(m, f)));
        return value;
    };
    // What is made of sums is a stage of its own then, so that it is made in any case, and no branch stands around it.
    const bool chosen_behind = neighbours.zeros_beside && (neighbours.sum || neighbours.behind);
    c.made = c.sums = compute(chosen_behind ? "made" : "sums", {whole, of.filters}, [&](Expr m, Expr f) {
        if (chosen_behind) return made(m, f);
        return cast(shape.type, neighbours.zeros_beside ? select(c.pixel(m) != 0, made(m, f), zero) : made(m, f));
    });
    if (chosen_behind)
        c.sums = compute("sums", {whole, of.filters},
                         [&](Expr m, Expr f) { return cast(shape.type, select(c.pixel(m) != 0, c.made(m, f), zero)); });
    c.result = compute(
        forward ? "y" : "d_x", {of.images, of.rows, of.columns, of.filters},
        [&](const std::vector<Expr>& at) { return c.sums(at[0] * (height * width) + at[1] * width + at[2], at[3]); });
    return c;
}

namespace {

/// Once for all taps, in shared memory: each thread makes the same 8 channels of many places.
void make_image(Schedule& s, const HaloConvolution& c, const Loop& around, const HaloTiles& tiles) {
    s.at({c.image}, around, Memory::Shared);
    auto [place, channel] = s.loops<2>(c.image);
    const int64_t rows = made_at_once(tiles, require_constant(s.extent(channel)));
    const bool divides = require_constant(s.extent(place)) % rows == 0;
    auto [step, row] = s.split(place, rows, Tail::Mask, {"step", "row"});
    auto [group, element] = s.split(channel, piece, {"group", "element"});
    s.order({row, group, step, element});
    const Loop share = s.fuse(row, group, "share");
    s.bind(share, thread);
    s.bind(element, vector);
    for (const Tensor& operand : c.by_channel) s.stage(c.image, operand, Memory::Registers, share);
    if (!divides) s.cut(step, where_partial(c.image));
}

/// Sums of a tile in registers, filters as rows of the unit: pixels come with their halo, all taps of some channels at
/// once. Weights are the same for all tiles, or come tap by tap.
void sum_up(Schedule& s, const Stage& sums, const HaloConvolution& c, const Loop& tile, const HaloTiles& tiles,
            std::vector<StageRef>& loaded) {
    const std::vector<Loop> data = s.data_loops(sums);
    const int64_t terms = require_constant(c.raster.shape()[1]);
    auto [warpgroup_row, f] = s.split(data[1], rows_of_unit, Tail::Mask, {"warpgroup_m", "f"});
    auto [channel, k] = s.split(s.reduce(sums, 2), terms_of_step(terms), {"channel", "k"});
    s.order({warpgroup_row, channel, s.reduce(sums, 0), s.reduce(sums, 1), f, data[0], k});
    s.bind(warpgroup_row, warpgroup);
    const bool stay = tiles.weight_stages == 0;
    const Loop around_weights = stay ? tile : s.fuse({s.reduce(sums, 0), s.reduce(sums, 1)}, "tap");
    const bool is_made = !c.image.same(c.raster);
    if (is_made) make_image(s, c, channel, tiles);
    const Stage reader = is_made ? s[c.image] : sums;
    loaded = {s.stage(reader, c.raster, Memory::Shared, channel),
              s.stage(sums, c.taps, Memory::Shared, around_weights)};
    s.inline_stage(c.raster);
    s.inline_stage(c.taps);
    s.mma(sums, wgmma, {.m = f, .n = data[0], .k = k});
    // Products of a piece run on while the image of the next one is made, of which there is one more then.
    const bool makes_ahead = is_made && !stay && terms > 64;
    s.pipeline(channel, {.stages = tiles.stages, .in_flight = is_made && !makes_ahead ? 0 : 1});
    if (!stay)
        s.pipeline(around_weights,
                   {.stages = tiles.weight_stages, .in_flight = makes_ahead && tiles.weight_stages > 3 ? 2 : 1});
}

/// By the threads that have its sums: filters are rows of the unit.
void share_as_sums(Schedule& s, const Tensor& made) {
    auto [m, f] = s.loops<2>(made);
    auto [warpgroup_row, own] = s.split(f, rows_of_unit, Tail::Mask, {"warpgroup_m", "f"});
    s.order({warpgroup_row, own, m});
    s.bind(warpgroup_row, warpgroup);
}

/// Threads store what is a pixel, 16 bytes each.
void leave(Schedule& s, const Loop& place, const Loop& filter, int64_t filters, int64_t threads) {
    const auto room = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(filters)));
    auto [all, group, element] = s.split(filter, {room, piece}, Tail::Mask, {"all", "group", "element"});
    s.order({place, all, group, element});
    const Loop stored = s.fuse({place, all, group}, "stored");
    while (require_constant(s.extent(stored)) % threads != 0) --threads;  // each round of theirs is of whole places
    auto [each, share] = s.split(stored, threads, {"each", "share"});
    s.bind(share, thread);
    s.bind(element, vector);
}

}  // namespace

void schedule_halo(Schedule& s, const HaloConvolution& c, const HaloTiles& given, const HaloFollowers& followers,
                   std::source_location where) {
    CalledFrom caller(where);
    require_sizes("halo tiles",
                  {{"places", given.places},
                   {"leaving", given.leaving, c.sums_places ? 0 : 1},
                   {"stages", given.stages},
                   {"ping_pong", given.ping_pong},
                   {"warpgroups", given.warpgroups},
                   {"weight_stages", given.weight_stages, 0},
                   {"parts", given.parts}},
                  where);
    if (c.sums_places) return schedule_halo_of_terms(s, c, given);
    const int64_t of_all = require_constant(c.result.shape()[3]);
    HaloTiles tiles = given;
    tiles.warpgroups = static_cast<int>(std::min<int64_t>(given.warpgroups, divided(of_all, rows_of_unit)));
    const Stage total = s.accumulators(c.made);
    auto [image, p, q, filter] = s.loops<4>(c.result);
    // Places that are no pixels are masked.
    auto [rows, row] = s.split(p, c.height, Tail::Mask, {"rows", "row"});
    auto [columns, column] = s.split(q, c.width, Tail::Mask, {"columns", "column"});
    auto [tile, leaving, place] = s.split(s.fuse({image, rows, row, columns, column}, "m"),
                                          {tiles.places, tiles.leaving}, Tail::Mask, {"tile", "leaving", "place"});
    const int64_t filters = rows_of_unit * tiles.warpgroups;
    std::vector<Loop> blocks{tile};
    if (of_all > filters) {
        auto [filter_tile, own] = s.split(filter, filters, Tail::Mask, {"filter_tile", "filter"});
        s.order({tile, filter_tile, leaving, place, own});
        blocks.push_back(filter_tile);
        filter = own;
    }
    for (const StageRef& follower : followers.of_pieces) s.at(follower, leaving);
    for (const StageRef& follower : followers.of_tiles) s.at(follower, blocks.back());
    s.at({c.sums}, leaving, Memory::Shared);
    if (!c.made.same(c.sums)) s.at({c.made}, leaving, Memory::Registers);
    if (c.pixel.defined()) s.at({c.pixel}, blocks.back(), Memory::Shared);
    s.at({total}, blocks.back(), Memory::Registers);
    std::vector<StageRef> loaded;
    sum_up(s, total, c, blocks.back(), tiles, loaded);
    if (c.beside.defined()) {
        loaded.push_back(s.stage(c.made, c.beside, Memory::Shared, leaving));
        s.inline_stage(c.beside);
        const HaloExtras extras{.image = !c.image.same(c.raster), .beside = true, .sums = !followers.of_pieces.empty()};
        const int64_t stages = stages_beside(sizes_of(c), tiles, extras, s.target());
        s.pipeline(leaving, {.stages = static_cast<int>(stages)});
    }
    share_as_sums(s, c.sums);
    if (!c.made.same(c.sums)) share_as_sums(s, c.made);
    leave(s, place, filter, std::min(of_all, filters), 128 * tiles.warpgroups);
    s.persistent(blocks);
    s.roles(loading_roles(
        s.target(), loaded, s[c.result],
        {.warpgroups = tiles.warpgroups * tiles.ping_pong, .loading = 24, .most = 240, .ping_pong = tiles.ping_pong}));
}

Schedule halo_schedule(const HaloConvolution& convolution, const HaloTiles& tiles, const Target& target,
                       std::source_location where) {
    CalledFrom caller(where);
    Schedule s({convolution.result}, target);
    schedule_halo(s, convolution, tiles);
    return s;
}

}  // namespace tw::schedules

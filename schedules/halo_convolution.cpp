#include "schedules/halo_convolution.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "schedules/halo_images.h"
#include "schedules/halo_weight_gradient.h"
#include "schedules/loading_roles.h"
#include "schedules/multiprocessor.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// Places, by all threads, each of which makes a piece of 8 channels.
int64_t made_at_once(const HaloTiles& tiles, int64_t channels) { return 128 * tiles.warpgroups / (channels / piece); }

int64_t bytes_of(const ConvolutionShape& s, const Images& of, const HaloTiles& tiles, bool makes_image) {
    constexpr int64_t barriers = 1024;
    const int64_t filters = rows_of_unit * tiles.warpgroups,
                  weights = tiles.weight_stages > 0 ? tiles.weight_stages * filters * of.terms_of_step() * 2
                                                    : s.kernel_h * s.kernel_w * filters * of.terms() * 2,
                  images = !makes_image                                 ? 0
                           : tiles.weight_stages > 0 && of.terms() > 64 ? 2
                                                                        : 1,
                  whole = makes_image ? made_at_once(tiles, of.terms_of_step()) : 8,
                  windows = (tiles.stages + images * tiles.ping_pong) * rounded_up(tiles.places + of.halo(), whole) *
                            of.terms_of_step() * 2,
                  leaving = tiles.ping_pong * tiles.leaving * (std::min(of.filters, filters) + piece) * 2;
    return weights + windows + leaving + barriers;
}

}  // namespace

namespace {

bool takes(const ConvolutionShape& s, ConvolutionPass pass, const HaloTiles& tiles, const Target& target,
           bool makes_image) {
    if (!takes_warpgroups(s, target) || !is_raster(s)) return false;
    const Images of = images_of(s, pass);
    const bool has_rows = tiles.weight_stages > 0 || of.filters <= rows_of_unit;
    return has_rows && rounded_up(tiles.places + of.halo(), 8) <= most_pixels_of_box &&
           bytes_of(s, of, tiles, makes_image) <= target.shared_bytes;
}

}  // namespace

bool takes_halo(const ConvolutionShape& s, ConvolutionPass pass, const HaloTiles& tiles, const Target& target) {
    if (pass == ConvolutionPass::WeightGradient) return takes_halo_of_terms(s, tiles, target);
    return takes(s, pass, tiles, target, false);
}

bool takes_made_halo(const ConvolutionShape& s, ConvolutionPass pass, const HaloTiles& tiles, const Target& target) {
    return pass != ConvolutionPass::WeightGradient &&
           images_of(s, pass).filters % (rows_of_unit * tiles.warpgroups) == 0 && takes(s, pass, tiles, target, true);
}

std::optional<HaloTiles> halo_tiles(const ConvolutionShape& s, ConvolutionPass pass, double tapwise,
                                    const Target& target, bool makes_image) {
    if (pass == ConvolutionPass::WeightGradient)
        return makes_image ? std::nullopt : halo_tiles_of_terms(s, tapwise, target);
    constexpr double start = 4000, made_a_cycle = 8;  // elements
    std::optional<HaloTiles> best;
    double least = tapwise;
    for (const auto& [places, leaving] : {std::pair(256, 32), {240, 48}, {224, 32}, {192, 48}, {160, 32}, {128, 32}}) {
        const HaloTiles tiles{.places = places, .leaving = leaving};
        if (!(makes_image ? takes_made_halo : takes_halo)(s, pass, tiles, target)) continue;
        const Images of = images_of(s, pass);
        const double products = as_double(rows_of_unit * places) * as_double(of.terms() * s.kernel_h * s.kernel_w),
                     bytes = as_double((places + of.halo()) * of.terms() * 2),
                     rounds = as_double(divided(divided(of.places(), places), target.multiprocessors));
        const double made = makes_image ? as_double((places + of.halo()) * of.terms()) / made_a_cycle : 0;
        const double cycles =
            start + rounds * (std::max(products / multiprocessor::products,
                                       bytes / multiprocessor::box_bytes + multiprocessor::box_latency / 2) +
                              made + multiprocessor::of_turn);
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
    Axis r = reduce_axis("r", shape.kernel_h), t = reduce_axis("s", shape.kernel_w), k = reduce_axis("c", terms);
    c.sums = compute("sums", {whole, of.filters}, [&](Expr m, Expr f) {
        const Expr tap = forward ? c.taps(r, t, f, k) : c.taps(r, t, k, f);
        Expr value = sum(cast(f32, c.image(m + (r * width + t) * shape.dilation, k)) * cast(f32, tap), {r, t, k});
        if (neighbours.sum) value = neighbours.sum(value, f);
        return neighbours.beside ? value : cast(shape.type, value);
    });
    c.result =
        compute(forward ? "y" : "d_x", {of.images, of.rows, of.columns, of.filters}, [&](const std::vector<Expr>& at) {
            const Expr value = c.sums(at[0] * (height * width) + at[1] * width + at[2], at[3]);
            return neighbours.beside ? cast(shape.type, neighbours.beside(value, at)) : value;
        });
    return c;
}

namespace {

/// Once for all taps, in shared memory: each thread makes the same 8 channels of many places.
void make_image(Schedule& s, const HaloConvolution& c, const Loop& around, const HaloTiles& tiles) {
    s.at(c.image, around);
    s.set_memory(c.image, Memory::Shared);
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
    auto [channel, k] = s.split(s.reduce(sums, 2), std::min<int64_t>(terms, 64), {"channel", "k"});
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

/// Threads store what is a pixel, 16 bytes each.
void leave(Schedule& s, const Loop& place, const Loop& filter, int64_t filters, int64_t threads) {
    const auto room = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(filters)));
    auto [all, inside] = s.split(filter, room, Tail::Mask, {"all", "inside"});
    auto [group, element] = s.split(inside, piece, {"group", "element"});
    s.order({place, all, group, element});
    const Loop stored = s.fuse({place, all, group}, "stored");
    while (require_constant(s.extent(stored)) % threads != 0) --threads;  // each round of theirs is of whole places
    auto [each, share] = s.split(stored, threads, {"each", "share"});
    s.bind(share, thread);
    s.bind(element, vector);
}

}  // namespace

void schedule_halo(Schedule& s, const HaloConvolution& c, const HaloTiles& given, std::source_location where) {
    CalledFrom caller(where);
    if (c.sums_places) return schedule_halo_of_terms(s, c, given);
    const int64_t of_all = require_constant(c.result.shape()[3]);
    HaloTiles tiles = given;
    tiles.warpgroups = static_cast<int>(std::min<int64_t>(given.warpgroups, divided(of_all, rows_of_unit)));
    const Stage total = s.accumulators(c.sums);
    auto [image, p, q, filter] = s.loops<4>(c.result);
    // Places that are no pixels are masked.
    auto [rows, row] = s.split(p, c.height, Tail::Mask, {"rows", "row"});
    auto [columns, column] = s.split(q, c.width, Tail::Mask, {"columns", "column"});
    auto [tile, inside] =
        s.split(s.fuse({image, rows, row, columns, column}, "m"), tiles.places, Tail::Mask, {"tile", "inside"});
    const int64_t filters = rows_of_unit * tiles.warpgroups;
    std::vector<Loop> blocks{tile};
    if (of_all > filters) {
        auto [filter_tile, own] = s.split(filter, filters, Tail::Mask, {"filter_tile", "filter"});
        s.order({tile, filter_tile, inside, own});
        blocks.push_back(filter_tile);
        filter = own;
    }
    auto [leaving, place] = s.split(inside, tiles.leaving, {"leaving", "place"});
    s.at(c.sums, leaving);
    s.set_memory(c.sums, Memory::Shared);
    s.at(total, blocks.back());
    s.set_memory(total, Memory::Registers);
    std::vector<StageRef> loaded;
    sum_up(s, total, c, blocks.back(), tiles, loaded);
    auto [m, f] = s.loops<2>(c.sums);
    auto [warpgroup_row, own] = s.split(f, rows_of_unit, Tail::Mask, {"warpgroup_m", "f"});
    s.order({warpgroup_row, own, m});
    s.bind(warpgroup_row, warpgroup);
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

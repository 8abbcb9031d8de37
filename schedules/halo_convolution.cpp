#include "schedules/halo_convolution.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "schedules/loading_roles.h"
#include "schedules/multiprocessor.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// The same sum of either pass: images of channels to images of filters.
struct Images {
    int64_t images, height, width, channels, filters;  // of what is read; of the result: filters
    int64_t rows, columns;                             // of the result
    int64_t reach_h, reach_w;                          // from the first tap to the last
    int64_t padding_h, padding_w;

    int64_t raster_height() const { return height + padding_h; }
    int64_t raster_width() const { return width + padding_w; }
    int64_t places() const { return images * raster_height() * raster_width(); }
    /// Behind a place, that its taps read.
    int64_t halo() const { return reach_h * raster_width() + reach_w; }
    /// In lines of 32, 64 or 128 bytes.
    int64_t terms() const { return channels <= 16 ? 16 : channels <= 32 ? 32 : rounded_up(channels, 64); }
    int64_t terms_of_step() const { return std::min<int64_t>(terms(), 64); }
};

Images images_of(const ConvolutionShape& s, ConvolutionPass pass) {
    const int64_t reach_h = (s.kernel_h - 1) * s.dilation, reach_w = (s.kernel_w - 1) * s.dilation;
    if (pass == ConvolutionPass::Forward)
        return {s.images,    s.height, s.width, s.channels, s.filters, s.rows(),
                s.columns(), reach_h,  reach_w, s.padding,  s.padding};
    return {s.images, s.rows(), s.columns(), s.filters,           s.channels,         s.height,
            s.width,  reach_h,  reach_w,     reach_h - s.padding, reach_w - s.padding};
}

bool is_raster(const ConvolutionShape& s, ConvolutionPass pass) {
    if (pass == ConvolutionPass::WeightGradient || s.stride != 1 || s.groups != 1 || s.kernel_h * s.kernel_w == 1)
        return false;
    return s.padding <= (s.kernel_h - 1) * s.dilation && s.padding <= (s.kernel_w - 1) * s.dilation &&
           s.channels % piece == 0 && s.filters % piece == 0;
}

int64_t bytes_of(const ConvolutionShape& s, const Images& of, const HaloTiles& tiles) {
    constexpr int64_t barriers = 1024;
    const int64_t weights = s.kernel_h * s.kernel_w * rows_of_unit * of.terms() * 2,
                  windows = tiles.stages * rounded_up(tiles.places + of.halo(), 8) * of.terms_of_step() * 2,
                  leaving = tiles.ping_pong * tiles.leaving * (of.filters + piece) * 2;
    return weights + windows + leaving + barriers;
}

}  // namespace

bool takes_halo(const ConvolutionShape& s, ConvolutionPass pass, const HaloTiles& tiles, const Target& target) {
    constexpr int64_t most_pixels = 1024;  // of a box
    if (!takes_warpgroups(s, target) || !is_raster(s, pass)) return false;
    const Images of = images_of(s, pass);
    return of.filters <= rows_of_unit && rounded_up(tiles.places + of.halo(), 8) <= most_pixels &&
           bytes_of(s, of, tiles) <= target.shared_bytes;
}

std::optional<HaloTiles> halo_tiles(const ConvolutionShape& s, ConvolutionPass pass, double tapwise,
                                    const Target& target) {
    constexpr double start = 4000;
    std::optional<HaloTiles> best;
    double least = tapwise;
    for (const auto& [places, leaving] : {std::pair(256, 32), {240, 48}, {224, 32}, {192, 48}, {160, 32}, {128, 32}}) {
        const HaloTiles tiles{.places = places, .leaving = leaving};
        if (!takes_halo(s, pass, tiles, target)) continue;
        const Images of = images_of(s, pass);
        const double products = as_double(rows_of_unit * places) * as_double(of.terms() * s.kernel_h * s.kernel_w),
                     bytes = as_double((places + of.halo()) * of.terms() * 2),
                     rounds = as_double(divided(divided(of.places(), places), target.multiprocessors));
        const double cycles =
            start + rounds * (std::max(products / multiprocessor::products,
                                       bytes / multiprocessor::box_bytes + multiprocessor::box_latency / 2) +
                              multiprocessor::of_turn);
        if (cycles < least) least = cycles, best = tiles;
    }
    return best;
}

HaloConvolution declare_halo_convolution(const ConvolutionShape& shape, ConvolutionPass pass, int64_t places,
                                         std::source_location where) {
    CalledFrom caller(where);
    user_check(is_raster(shape, pass), where,
               "halo convolution: takes forward passes and data gradients with a stride of 1, more than one tap, at "
               "most as much padding as taps reach, and multiples of 8 channels and filters; declare_convolution takes "
               "all others");
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
        return cast(shape.type,
                    sum(cast(f32, c.raster(m + (r * width + t) * shape.dilation, k)) * cast(f32, tap), {r, t, k}));
    });
    c.result = compute(forward ? "y" : "d_x", {of.images, of.rows, of.columns, of.filters},
                       [&](Expr n, Expr p, Expr q, Expr f) { return c.sums(n * (height * width) + p * width + q, f); });
    return c;
}

namespace {

/// Sums of a tile in registers, filters as rows of the unit: pixels come with their halo, all taps of some channels at
/// once, and the weights are the same for all tiles. Returns the loop over channels.
Loop sum_up(Schedule& s, const Stage& sums, const HaloConvolution& c, const Loop& tile, const HaloTiles& tiles,
            std::vector<StageRef>& loaded) {
    const std::vector<Loop> data = s.data_loops(sums);
    const int64_t terms = require_constant(c.raster.shape()[1]);
    auto [warpgroup_row, f] = s.split(data[1], rows_of_unit, Tail::Mask, {"warpgroup_m", "f"});
    auto [channel, k] = s.split(s.reduce(sums, 2), std::min<int64_t>(terms, 64), {"channel", "k"});
    s.order({warpgroup_row, channel, s.reduce(sums, 0), s.reduce(sums, 1), f, data[0], k});
    s.bind(warpgroup_row, warpgroup);
    loaded = {s.stage(sums, c.raster, Memory::Shared, channel), s.stage(sums, c.taps, Memory::Shared, tile)};
    s.inline_stage(c.raster);
    s.inline_stage(c.taps);
    s.mma(sums, wgmma, {.m = f, .n = data[0], .k = k});
    s.pipeline(channel, {.stages = tiles.stages, .in_flight = 1});
    return channel;
}

/// Threads store what is a pixel, 16 bytes each.
void leave(Schedule& s, const Loop& place, const Loop& filter, int64_t filters) {
    const auto room = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(filters)));
    auto [all, inside] = s.split(filter, room, Tail::Mask, {"all", "inside"});
    auto [group, element] = s.split(inside, piece, {"group", "element"});
    s.order({place, all, group, element});
    const Loop stored = s.fuse({place, all, group}, "stored");
    int64_t threads = 128;  // or fewer, so that each round of theirs is of whole places
    while (require_constant(s.extent(stored)) % threads != 0) --threads;
    auto [each, share] = s.split(stored, threads, {"each", "share"});
    s.bind(share, thread);
    s.bind(element, vector);
}

}  // namespace

void schedule_halo(Schedule& s, const HaloConvolution& c, const HaloTiles& tiles, std::source_location where) {
    CalledFrom caller(where);
    const Stage total = s.accumulators(c.sums);
    auto [image, p, q, filter] = s.loops<4>(c.result);
    // Places that are no pixels are masked.
    auto [rows, row] = s.split(p, c.height, Tail::Mask, {"rows", "row"});
    auto [columns, column] = s.split(q, c.width, Tail::Mask, {"columns", "column"});
    auto [tile, inside] =
        s.split(s.fuse({image, rows, row, columns, column}, "m"), tiles.places, Tail::Mask, {"tile", "inside"});
    auto [leaving, place] = s.split(inside, tiles.leaving, {"leaving", "place"});
    s.at(c.sums, leaving);
    s.set_memory(c.sums, Memory::Shared);
    s.at(total, tile);
    s.set_memory(total, Memory::Registers);
    std::vector<StageRef> loaded;
    sum_up(s, total, c, tile, tiles, loaded);
    auto [m, f] = s.loops<2>(c.sums);
    auto [warpgroup_row, own] = s.split(f, rows_of_unit, Tail::Mask, {"warpgroup_m", "f"});
    s.order({warpgroup_row, own, m});
    s.bind(warpgroup_row, warpgroup);
    leave(s, place, filter, require_constant(c.result.shape()[3]));
    s.persistent({tile});
    s.roles(loading_roles(s.target(), loaded, s[c.result],
                          {.warpgroups = tiles.ping_pong, .loading = 24, .most = 240, .ping_pong = tiles.ping_pong}));
}

Schedule halo_schedule(const HaloConvolution& c, const HaloTiles& tiles, const Target& target,
                       std::source_location where) {
    CalledFrom caller(where);
    Schedule s({c.result}, target);
    schedule_halo(s, c, tiles);
    return s;
}

}  // namespace tw::schedules

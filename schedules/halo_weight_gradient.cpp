#include "schedules/halo_weight_gradient.h"

#include <algorithm>

#include "schedules/halo_images.h"
#include "schedules/loading_roles.h"
#include "schedules/multiprocessor.h"
#include "schedules/sum_of_parts.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t most_warpgroups = 3;

/// Sums of a thread: of a row of taps, 64 filters by the channels of a line.
int64_t sums_of_thread(const ConvolutionShape& s) {
    return s.kernel_w * images_of(s, ConvolutionPass::WeightGradient).terms_of_step() * rows_of_unit / 128;
}

int64_t bytes_of_stage(const ConvolutionShape& s, int64_t places) {
    const Images of = images_of(s, ConvolutionPass::WeightGradient);
    return (rounded_up(places + of.halo(), 8) * of.terms_of_step() + places * rows_of_unit) * 2;
}

}  // namespace

bool takes_halo_of_terms(const ConvolutionShape& s, const HaloTiles& tiles, const Target& target) {
    constexpr int64_t barriers = 1024;
    if (!takes_warpgroups(s, target) || !is_raster(s) || s.kernel_h > most_warpgroups || tiles.parts < 1) return false;
    const Images of = images_of(s, ConvolutionPass::WeightGradient);
    const int64_t most_sums = s.kernel_h == most_warpgroups ? 96 : 160;
    return sums_of_thread(s) <= most_sums && tiles.places % 16 == 0 && tiles.places > 0 &&
           rounded_up(tiles.places + of.halo(), 8) <= most_pixels_of_box &&
           tiles.stages * bytes_of_stage(s, tiles.places) + barriers <= target.shared_bytes;
}

namespace {

/// Cycles of a multiprocessor for the places of a step. Their buffer is free when the products behind them are under
/// way: of two, the next one arrives while nothing is multiplied.
double cycles_of_step(const ConvolutionShape& s, const HaloTiles& tiles) {
    constexpr double overhead = 100;
    const double columns = as_double(images_of(s, ConvolutionPass::WeightGradient).terms_of_step()),
                 terms = as_double(s.kernel_h * s.kernel_w * tiles.places), rows = as_double(rows_of_unit);
    const double arrival = as_double(bytes_of_stage(s, tiles.places)) / multiprocessor::box_bytes,
                 wait = arrival + multiprocessor::box_latency,
                 reads = terms * (rows + columns) * 2 / multiprocessor::shared_bytes,
                 busy = std::max({rows * columns * terms / multiprocessor::products, reads, arrival});
    return overhead + (tiles.stages == 2 ? busy + wait : std::max(busy, wait / (tiles.stages - 2)));
}

}  // namespace

double halo_cycles_of_terms(const ConvolutionShape& s, const HaloTiles& tiles, const Target& target) {
    const Images of = images_of(s, ConvolutionPass::WeightGradient);
    const int64_t blocks = divided(s.filters, rows_of_unit) * divided(of.channels, of.terms_of_step()) * tiles.parts;
    const double rounds = as_double(divided(blocks, target.multiprocessors)),
                 steps = as_double(divided(of.places(), tiles.whole_places())),
                 sums = as_double(s.filters * of.channels * s.kernel_h * s.kernel_w);
    const double operands = as_double(of.images * of.height * of.width * (of.channels + of.filters)) * 2;
    const double idle = rounds * target.multiprocessors / as_double(blocks);
    return multiprocessor::beside_memory(rounds * (steps * cycles_of_step(s, tiles) + multiprocessor::of_tile),
                                         operands * idle) +
           multiprocessor::adding_up(sums, tiles.parts);
}

std::optional<HaloTiles> halo_tiles_of_terms(const ConvolutionShape& s, double tapwise, const Target& target) {
    constexpr int most_stages = 6;
    if (!is_raster(s)) return {};
    const int64_t places = images_of(s, ConvolutionPass::WeightGradient).places();
    std::optional<HaloTiles> best;
    double least = tapwise;
    for (int64_t each : {192, 160, 128, 96, 64, 48, 32})
        for (int stages = most_stages; stages >= 2; --stages) {
            HaloTiles tiles{.places = each, .leaving = 0, .stages = stages, .ping_pong = 1};
            if (!takes_halo_of_terms(s, tiles, target)) continue;
            const int64_t most_parts = std::min<int64_t>(divided(places, each), target.multiprocessors);
            for (tiles.parts = 1; tiles.parts <= most_parts; ++tiles.parts) {
                const double cycles = halo_cycles_of_terms(s, tiles, target);
                if (cycles < least * 0.995) least = cycles, best = tiles;
            }
            break;  // fewer stages only wait longer
        }
    return best;
}

HaloConvolution declare_halo_of_terms(const ConvolutionShape& shape, int64_t places, const HaloNeighbours& neighbours) {
    if (neighbours.image || neighbours.sum || neighbours.beside.defined() || neighbours.zeros_beside)
        throw_error(Error,
                    "halo convolution: nothing stands around a weight gradient; compute it from the result instead");
    const Images of = images_of(shape, ConvolutionPass::WeightGradient);
    const int64_t width = of.raster_width(), height = of.raster_height(), whole = rounded_up(of.places(), places),
                  filters = rounded_up(of.filters, rows_of_unit);
    HaloConvolution c{.sums_places = true, .height = height, .width = width};
    c.x = input("x", shape.type, {of.images, of.height, of.width, of.channels});
    c.w = input("dy", shape.type, {of.images, of.rows, of.columns, of.filters});
    c.raster = compute("raster", {whole + of.halo(), of.terms()}, [&](Expr m, Expr channel) {
        return padded(c.x, 0)(m / width / height, m / width % height - of.padding_h, m % width - of.padding_w, channel);
    });
    c.image = c.raster;
    c.taps = compute("gradient", {whole, filters}, [&](Expr m, Expr filter) {
        return padded(c.w, 0)(m / width / height, m / width % height, m % width, filter);
    });
    Axis m = reduce_axis("m", whole);
    c.sums = compute("d_w", {of.filters, shape.kernel_h, shape.kernel_w, of.channels},
                     [&](Expr f, Expr r, Expr t, Expr channel) {
                         const Expr image = c.raster(m + (r * width + t) * shape.dilation, channel);
                         return cast(shape.type, sum(cast(f32, c.taps(m, f)) * cast(f32, image), m));
                     });
    c.result = c.sums;
    return c;
}

/// A block sums all taps of 64 filters and a line of channels; places, of a part of all, come tile by tile.
void schedule_halo_of_terms(Schedule& s, const HaloConvolution& c, const HaloTiles& tiles) {
    const Tensor& result = c.result;
    const int64_t columns = terms_of_step(require_constant(c.raster.shape()[1]));
    Stage sums = s[result];
    Loop places = s.reduce(sums);
    std::vector<Loop> outer;
    if (tiles.parts > 1) {
        const int64_t each = require_constant(s.extent(places)) / tiles.parts;
        sums = s.rfactor(result, s.split(places, each, {"part", "in_part"})[0]);
        schedule_sum_of_parts(s, result, tiles.parts);
        places = s.reduce(sums);
        outer.push_back(s.data_loops(sums)[0]);
    }
    const std::vector<Loop> data = s.data_loops(sums);
    const auto dw = data.end() - 4;
    auto [row_tile, m] = s.split(dw[0], rows_of_unit, Tail::Mask, {"row_tile", "m"});
    auto [column_tile, n] = s.split(dw[3], columns, Tail::Mask, {"column_tile", "n"});
    auto [step, k] = s.split(places, tiles.places, {"step", "k"});
    outer.insert(outer.end(), {row_tile, column_tile});
    std::vector<Loop> order = outer;
    order.insert(order.end(), {dw[1], step, dw[2], m, n, k});
    s.order(order);
    s.bind(dw[1], warpgroup);
    s.persistent(outer);
    const std::vector<StageRef> loaded{s.stage(sums, c.taps, Memory::Shared, step),
                                       s.stage(sums, c.raster, Memory::Shared, step)};
    s.inline_stage(c.taps);
    s.inline_stage(c.raster);
    s.mma(sums, wgmma, {.m = m, .n = n, .k = k});
    s.pipeline(step, {.stages = tiles.stages, .in_flight = 1});
    s.roles(loading_roles(s.target(), loaded, sums,
                          {.warpgroups = require_constant(s.extent(dw[1])), .loading = 40, .most = 240}));
}

}  // namespace tw::schedules

#include "schedules/fused_convolution.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "schedules/choose.h"
#include "schedules/elementwise.h"
#include "schedules/long_reductions.h"
#include "schedules/whole_tiles.h"
#include "schedules/windows.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

bool adds(const FusedConvolutionShape& shape, ConvolutionEpilogue step) {
    return std::ranges::find(shape.epilogue, step) != shape.epilogue.end();
}

using Steps = std::vector<ConvolutionEpilogue>;

/// Steps without a residual need no element of it.
Expr made_by(const FusedConvolution& c, const Steps& steps, Expr value, const Expr& filter, const Expr& residual = {}) {
    for (ConvolutionEpilogue step : steps) switch (step) {
            case ConvolutionEpilogue::Bias: value = value + c.bias(filter); break;
            case ConvolutionEpilogue::Relu: value = relu(value); break;
            case ConvolutionEpilogue::Silu: value = silu(value); break;
            case ConvolutionEpilogue::Residual: value = value + residual; break;
        }
    return value;
}

void declare_image(FusedConvolution& c, const FusedConvolutionShape& shape) {
    c.image = c.x;
    if (!shape.prologue) return;
    const ConvolutionShape& s = shape.convolution;
    c.image = compute("a", {s.images, s.height, s.width, s.channels}, [&](Expr n, Expr h, Expr v, Expr k) {
        return cast(s.type, relu(cast(f32, c.x(n, h, v, k)) * c.scale(k) + c.shift(k)));
    });
}

void declare_result(FusedConvolution& c, const FusedConvolutionShape& shape) {
    const ConvolutionShape& s = shape.convolution;
    const Axis r = reduce_axis("r", s.kernel_h), t = reduce_axis("s", s.kernel_w), k = reduce_axis("c", s.channels);
    auto place = [&](const Expr& pixel, const Expr& tap) { return pixel * s.stride + tap * s.dilation - s.padding; };
    c.y = compute("y", {s.images, s.rows(), s.columns(), s.filters}, [&](const std::vector<Expr>& at) {
        const Expr element = padded(c.image, 0)(at[0], place(at[1], r), place(at[2], t), k);
        const Expr total = sum(cast(f32, element) * cast(f32, c.w(at[3], r, t, k)), {r, t, k});
        const Expr residual =
            c.residual.defined() ? cast(f32, c.residual(at[0], at[1], at[2], at[3])) : constant(f32, 0.0);
        return cast(s.type, made_by(c, shape.epilogue, total, at[3], residual));
    });
}

/// Sums over `pixels` of y and of y y, together, `y` f32, of a filter.
void declare_sums(FusedConvolution& c, int64_t filters, const std::vector<Axis>& pixels,
                  const std::function<Expr(const Expr& filter)>& y) {
    const Expr zero = constant(f32, 0.0);
    const Reducer two_sums = make_reducer("two_sums", {zero, zero}, [](const auto& a, const auto& b) {
        return std::vector{a[0] + b[0], a[1] + b[1]};
    });
    const auto sums = compute_tuple("statistics", {"totals", "squares"}, {filters}, [&](const std::vector<Expr>& at) {
        const Expr value = y(at[0]);
        return reduce(two_sums, {value, value * value}, pixels);
    });
    c.totals = sums[0], c.squares = sums[1];
}

void declare_statistics(FusedConvolution& c, const ConvolutionShape& s) {
    const Axis n = reduce_axis("n", s.images), p = reduce_axis("p", s.rows()), q = reduce_axis("q", s.columns());
    declare_sums(c, s.filters, {n, p, q}, [&](const Expr& filter) { return cast(f32, c.y(n, p, q, filter)); });
}

/// The same over a raster, whose sums are 0 where a place is no pixel.
void declare_statistics(FusedConvolution& c, const HaloConvolution& halo) {
    const Axis m = reduce_axis("m", require_constant(halo.sums.shape()[0]));
    declare_sums(c, require_constant(c.y.shape()[3]), {m},
                 [&](const Expr& filter) { return cast(f32, halo.sums(m, filter)); });
}

/// What stands beside x and w.
void declare_operands(FusedConvolution& c, const FusedConvolutionShape& shape) {
    const ConvolutionShape& s = shape.convolution;
    if (shape.prologue) c.scale = input("scale", f32, {s.channels}), c.shift = input("shift", f32, {s.channels});
    if (adds(shape, ConvolutionEpilogue::Bias)) c.bias = input("bias", f32, {s.filters});
    if (adds(shape, ConvolutionEpilogue::Residual))
        c.residual = input("residual", s.type, {s.images, s.rows(), s.columns(), s.filters});
}

void check_shape(const FusedConvolutionShape& shape, std::source_location where) {
    const ConvolutionShape& s = shape.convolution;
    user_check(s.channels % piece == 0 && s.filters % piece == 0, where,
               "fused convolution: rows of {} channels and of {} filters are not whole pieces of 16 bytes; give "
               "multiples of {}, with zeros behind them",
               s.channels, s.filters, piece);
    user_check(s.groups == 1, where, "fused convolution: {} groups; give one, or a convolution of its own", s.groups);
}

}  // namespace

double FusedConvolutionShape::bytes() const {
    const ConvolutionShape& s = convolution;
    const double results = static_cast<double>(s.images * s.rows() * s.columns() * s.filters);
    return s.bytes() + (adds(*this, ConvolutionEpilogue::Residual) ? results * bytes_of(s.type) : 0);
}

std::vector<Tensor> FusedConvolution::outputs() const {
    if (!totals.defined()) return {y};
    return {y, totals, squares};
}

FusedConvolution declare_fused_convolution(const FusedConvolutionShape& shape, std::source_location where) {
    const ConvolutionShape& s = shape.convolution;
    check_shape(shape, where);
    const Convolution plain = declare_convolution(s, ConvolutionPass::Forward, where);  // checks the shape
    FusedConvolution c;
    c.x = plain.x, c.w = plain.w;
    declare_operands(c, shape);
    declare_image(c, shape);
    declare_result(c, shape);
    if (shape.statistics) declare_statistics(c, s);
    return c;
}

namespace {

/// Of rows that lie in shared memory: threads share the columns of a piece, in pairs, and its rows.
void sum_piece(Schedule& s, const Stage& parts, const ConvolutionTiles& tiles) {
    constexpr int64_t threads_of_warpgroup = 128, neighbours = 2;
    const int64_t pairs = std::min(tiles.box_columns, tiles.columns) / neighbours,
                  shares = threads_of_warpgroup * tiles.warpgroups / pairs;
    auto [part, column] = s.loops<2>(parts);
    auto [pair, element] = s.split(column, neighbours, {"pair", "element"});
    auto [row, share] = s.split(s.reduce(parts), shares, {"row", "share"});
    s.order({part, share, pair, row, element});
    s.bind(share, thread);
    s.bind(pair, thread);
    s.bind(element, vector);
}

/// Of the rows of a warpgroup, by those that have them in registers.
void sum_registers(Schedule& s, const Stage& parts, const Tensor& y, const Loop& tile, int64_t rows) {
    auto [group, column] = s.loops<2>(parts);
    s.order({group, s.reduce(parts), column});
    s.bind(group, warpgroup);
    const Stage stored = s.stage(y, Memory::Registers, tile);
    s.bind(s.split(s.data_loops(stored)[0], rows, {"warpgroup_m", "m"})[0], warpgroup);
}

/// Sums over the rows of each tile; those of all tiles in a kernel behind.
Stage sums_of_tiles(Schedule& s, const Tensor& totals, int64_t rows) {
    std::vector<Loop> pixels = s.all_loops(totals);
    pixels.erase(pixels.begin());
    const Loop part = s.split(s.fuse(pixels, "pixel"), rows, Tail::Mask, {"part", "row"})[0];
    const int64_t count = require_constant(s.extent(part)), columns = require_constant(totals.shape()[0]);
    const Stage parts = s.rfactor(totals, part);
    schedule_column_reduction(s, totals, count, column_threads(count, columns, 1));
    return parts;
}

/// What a thread holds beside sums of products takes registers: tiles have fewer rows. They leave in pieces where these
/// are summed, or where pieces of the residual arrive.
ConvolutionTiles with_room(ConvolutionTiles tiles, const FusedConvolutionShape& shape,
                           const ConvolutionExtents& extents, const Target& target) {
    constexpr int64_t most_rows = 256, most_sums = 128 * 128, wide = 64, narrow = 32, most_stages = 8;
    constexpr int64_t reserved = 12 << 10;  // bytes, in which warps add up what they have
    const bool residual = adds(shape, ConvolutionEpilogue::Residual);
    const int64_t rows_of_units = rows_of_unit * tiles.warpgroups;
    tiles.rows = std::min(tiles.rows, most_rows / rows_of_units * rows_of_units);
    if (tiles.rows > rows_of_units && tiles.rows * tiles.columns > most_sums * tiles.warpgroups)
        tiles.rows = rows_of_units;
    const bool whole = extents.rows >= tiles.rows && extents.columns >= tiles.columns && tiles.columns % narrow == 0;
    if ((shape.statistics || residual) && whole)
        tiles.box_columns = tiles.columns % wide == 0 && !residual ? wide : narrow;
    const int64_t bytes = (tiles.rows + tiles.columns) * tiles.terms * bytes_of(bf16),
                  piece_bytes = tiles.rows * tiles.box_columns * bytes_of(bf16),
                  pieces = tiles.ping_pong + (residual ? 2 : 0);
    const int64_t stages = (target.shared_bytes - reserved - piece_bytes * pieces) / bytes;
    tiles.stages = static_cast<int>(std::clamp<int64_t>(stages, 2, most_stages));
    return tiles;
}

}  // namespace

Schedule fused_convolution_schedule(const FusedConvolution& c, const FusedConvolutionShape& shape,
                                    const std::optional<ConvolutionTiles>& tiles, const Target& target,
                                    std::source_location where) {
    CalledFrom caller(where);
    const ConvolutionShape& convolution = shape.convolution;
    if (!takes_warpgroups(convolution, target)) return choose_schedule(c.outputs(), target, where);
    const WindowProduct plain = product_of(declare_convolution(convolution, ConvolutionPass::Forward));
    WindowProduct product{.result = c.y, .a = c.image, .b = c.w, .form = plain.form};
    product.form.takes_parts = product.form.terms_are_neighbours = false;  // tiles of round numbers of columns
    ConvolutionTiles chosen = tiles ? *tiles : convolution_tiles(product.form, target).value();
    if (!tiles && (shape.statistics || c.residual.defined()))
        chosen = with_room(chosen, shape, plain.form.extents, target);
    Schedule s(c.outputs(), target);
    WindowNeighbours neighbours{.image = shape.prologue && tiles ? c.x : Tensor()};
    if (shape.prologue && !tiles) schedule_dense_copy(s, c.image);
    if (c.residual.defined()) neighbours.beside = {c.residual};
    if (!shape.statistics) {
        schedule_windows(s, product, chosen, neighbours);
        return s;
    }
    const int64_t rows = chosen.box_columns > 0 ? chosen.rows : chosen.rows / chosen.warpgroups;
    s.join_axes(c.y, 0, 2);
    const Stage parts = sums_of_tiles(s, c.totals, rows);
    neighbours.behind = {parts};
    const Loop tile = schedule_windows(s, product, chosen, neighbours);
    if (chosen.box_columns > 0)
        sum_piece(s, parts, chosen);
    else
        sum_registers(s, parts, c.y, tile, rows);
    return s;
}

FusedHalo declare_fused_halo(const FusedConvolutionShape& shape, int64_t places, std::source_location where) {
    CalledFrom caller(where);
    check_shape(shape, where);
    const ConvolutionShape& s = shape.convolution;
    const bool has_residual = adds(shape, ConvolutionEpilogue::Residual);
    FusedHalo c;
    declare_operands(c.fused, shape);
    const auto residual = std::ranges::find(shape.epilogue, ConvolutionEpilogue::Residual);
    const Steps before(shape.epilogue.begin(), residual), behind(residual, shape.epilogue.end());
    HaloNeighbours neighbours{.zeros_beside = shape.statistics};
    if (shape.prologue) neighbours.by_channel = {c.fused.scale, c.fused.shift};
    if (shape.prologue)
        neighbours.image = [&](const Expr& value, const Expr& channel) {
            return relu(value * padded(c.fused.scale, 0)(channel) + padded(c.fused.shift, 0)(channel));
        };
    if (!before.empty())
        neighbours.sum = [&](const Expr& value, const Expr& filter) { return made_by(c.fused, before, value, filter); };
    if (has_residual) {
        neighbours.beside = c.fused.residual;
        neighbours.behind = [&](const Expr& value, const Expr& filter, const Expr& element) {
            return made_by(c.fused, behind, value, filter, element);
        };
    }
    c.halo = declare_halo_convolution(s, ConvolutionPass::Forward, places, neighbours);
    c.fused.x = c.halo.x, c.fused.w = c.halo.w, c.fused.image = c.halo.image, c.fused.y = c.halo.result;
    if (shape.statistics) declare_statistics(c.fused, c.halo);
    return c;
}

namespace {

/// Sums over places: of pieces that leave together, of tiles, and of all of them, by a kernel behind.
struct SumsOfRaster {
    Stage pieces, tiles;
};
SumsOfRaster sums_of_raster(Schedule& s, const FusedHalo& c, const HaloTiles& tiles) {
    const Tensor& totals = c.fused.totals;
    const int64_t of_tile = tiles.places / tiles.leaving,
                  count = require_constant(c.halo.sums.shape()[0]) / tiles.places,
                  filters = require_constant(totals.shape()[0]);
    const Loop piece = s.split(s.reduce(totals), tiles.leaving, {"piece", "place"})[0];
    const Stage pieces = s.rfactor(totals, piece);
    const Loop tile = s.split(s.reduce(totals), of_tile, {"tile", "piece"})[0];
    const Stage tiles_sums = s.rfactor(totals, tile);
    schedule_column_reduction(s, totals, count, column_threads(count, filters, 1));
    return {pieces, tiles_sums};
}

/// Of results in shared memory: threads share the filters, in pairs, and the places of a piece; then a filter each.
void sum_places(Schedule& s, const SumsOfRaster& sums, int64_t filters, const HaloTiles& given) {
    constexpr int64_t threads_of_warpgroup = 128, neighbours = 2;
    const int64_t pairs = filters / neighbours;
    int64_t shares = 1;
    while (given.leaving % (2 * shares) == 0 && 2 * shares * pairs <= threads_of_warpgroup * given.warpgroups)
        shares *= 2;
    auto [piece, filter] = s.loops<2>(sums.pieces);
    auto [pair, element] = s.split(filter, neighbours, {"pair", "element"});
    auto [row, share] = s.split(s.reduce(sums.pieces), shares, {"row", "share"});
    s.order({piece, share, pair, row, element});
    s.bind(share, thread);
    s.bind(pair, thread);
    s.bind(element, vector);
    auto [tile, own] = s.loops<2>(sums.tiles);
    s.bind(own, thread);
}

}  // namespace

Schedule fused_halo_schedule(const FusedHalo& c, const HaloTiles& tiles, const Target& target,
                             std::source_location where) {
    CalledFrom caller(where);
    Schedule s(c.fused.outputs(), target);
    if (!c.fused.totals.defined()) {
        schedule_halo(s, c.halo, tiles);
        return s;
    }
    const SumsOfRaster sums = sums_of_raster(s, c, tiles);
    schedule_halo(s, c.halo, tiles, {.of_pieces = {sums.pieces}, .of_tiles = {sums.tiles}});
    sum_places(s, sums, std::min<int64_t>(require_constant(c.fused.y.shape()[3]), rows_of_unit * tiles.warpgroups),
               tiles);
    return s;
}

HaloExtras extras_of(const FusedConvolutionShape& shape) {
    return {.image = shape.prologue, .beside = adds(shape, ConvolutionEpilogue::Residual), .sums = shape.statistics};
}

std::optional<HaloTiles> fused_halo_tiles(const FusedConvolutionShape& shape, const Target& target) {
    constexpr double bytes_a_cycle = 1500;  // of all multiprocessors, that a kernel before moves
    const ConvolutionShape& s = shape.convolution;
    if (!takes_warpgroups(s, target)) return {};
    const ConvolutionForm form = product_of(declare_convolution(s, ConvolutionPass::Forward)).form;
    const auto tiles = convolution_tiles(form, target);
    if (!tiles) return {};
    const double image = static_cast<double>(s.images * s.height * s.width * s.channels) * bytes_of(s.type),
                 before = shape.prologue ? 2 * image / bytes_a_cycle : 0;
    return halo_tiles(s, ConvolutionPass::Forward, convolution_cycles(form, *tiles, target) + before, target,
                      extras_of(shape));
}

Schedule fused_convolution_schedule(const NamedFusedConvolution& named, const Target& target,
                                    std::source_location where) {
    CalledFrom caller(where);
    std::optional<HaloTiles> halo = named.halo;
    if (!halo && !named.tiles) halo = fused_halo_tiles(named.shape, target);
    if (halo && takes_warpgroups(named.shape.convolution, target))
        return fused_halo_schedule(declare_fused_halo(named.shape, halo->places), *halo, target);
    return fused_convolution_schedule(declare_fused_convolution(named.shape), named.shape, named.tiles, target);
}

std::optional<NamedFusedConvolution> parse_fused_convolution(const std::string& name) {
    constexpr std::string_view prefix = "convolution_fused_", prologue = "_prologue", statistics = "_statistics";
    constexpr std::array<std::pair<std::string_view, ConvolutionEpilogue>, 4> steps{{
        {"_bias", ConvolutionEpilogue::Bias},
        {"_relu", ConvolutionEpilogue::Relu},
        {"_silu", ConvolutionEpilogue::Silu},
        {"_residual", ConvolutionEpilogue::Residual},
    }};
    if (!name.starts_with(prefix)) return {};
    std::string rest = "convolution_" + name.substr(prefix.size());
    auto takes = [&](std::string_view ending) {
        if (!rest.ends_with(ending)) return false;
        rest.resize(rest.size() - ending.size());
        return true;
    };
    NamedFusedConvolution named;
    named.shape.statistics = takes(statistics);
    auto one = [&] {
        return std::ranges::any_of(steps, [&](const auto& step) {
            if (!takes(step.first)) return false;
            named.shape.epilogue.insert(named.shape.epilogue.begin(), step.second);
            return true;
        });
    };
    while (one()) {
    }
    named.shape.prologue = takes(prologue);
    const auto convolution = parse_convolution(rest);
    if (!convolution || convolution->pass != ConvolutionPass::Forward) return {};
    named.shape.convolution = convolution->shape;
    named.tiles = convolution->tiles, named.halo = convolution->halo;
    if (named.shape.convolution.channels % piece != 0 || named.shape.convolution.filters % piece != 0 ||
        named.shape.convolution.groups != 1)
        return {};
    return named;
}

}  // namespace tw::schedules

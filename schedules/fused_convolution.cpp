#include "schedules/fused_convolution.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "codegen/lower.h"
#include "dsl/edit.h"
#include "schedules/choose.h"
#include "schedules/elementwise.h"
#include "schedules/sums_behind.h"
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

Schedule fused_convolution_schedule(const FusedConvolution& c, const FusedConvolutionShape& shape,
                                    const std::optional<ConvolutionTiles>& tiles, const Target& target,
                                    std::source_location where) {
    CalledFrom caller(where);
    const ConvolutionShape& convolution = shape.convolution;
    if (!takes_warpgroups(convolution, target)) return choose_schedule(c.outputs(), target, where);
    const WindowProduct plain = product_of(declare_convolution(convolution, ConvolutionPass::Forward));
    WindowProduct product{.result = c.y, .a = c.image, .b = c.w, .form = plain.form};
    product.form.takes_parts = product.form.terms_are_neighbours = false;  // tiles of round numbers of columns
    const auto given_or_modelled = tiles ? tiles : convolution_tiles(product.form, target);
    if (!given_or_modelled) return choose_schedule(c.outputs(), target, where);
    ConvolutionTiles chosen = *given_or_modelled;
    if (!tiles && (shape.statistics || c.residual.defined()))
        chosen =
            with_room(chosen, {.beside = c.residual.defined(), .sums = shape.statistics}, plain.form.extents, target);
    Schedule s(c.outputs(), target);
    WindowNeighbours neighbours{.image = shape.prologue && tiles ? c.x : Tensor()};
    if (shape.prologue && !tiles) schedule_dense_copy(s, c.image);
    if (c.residual.defined()) neighbours.beside = {c.residual};
    if (shape.statistics)
        schedule_windows_and_sums(s, product, chosen, c.totals, neighbours);
    else
        schedule_windows(s, product, chosen, neighbours);
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

Schedule fused_halo_schedule(const FusedHalo& c, const HaloTiles& tiles, const Target& target,
                             std::source_location where) {
    CalledFrom caller(where);
    Schedule s(c.fused.outputs(), target);
    if (c.fused.totals.defined())
        schedule_halo_and_sums(s, c.halo, tiles, c.fused.totals);
    else
        schedule_halo(s, c.halo, tiles);
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
    const bool is_chosen = !named.halo && !named.tiles, takes = takes_warpgroups(named.shape.convolution, target);
    const std::optional<HaloTiles> halo = is_chosen ? fused_halo_tiles(named.shape, target) : named.halo;
    try {
        Schedule s = halo && takes ? fused_halo_schedule(declare_fused_halo(named.shape, halo->places), *halo, target)
                                   : fused_convolution_schedule(declare_fused_convolution(named.shape), named.shape,
                                                                named.tiles, target);
        if (is_chosen) codegen::lower(s.tree(), target);  // passes say what no step does, as where masks may be
        return s;
    } catch (const Error& error) {
        if (!is_chosen) throw;
        Schedule s = choose_schedule(declare_fused_convolution(named.shape).outputs(), target, where);
        Edit::note(
            s, fmt::format("by the rules for any computation; the model's tiles cannot be built: {}", error.what()));
        return s;
    }
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

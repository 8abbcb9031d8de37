#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "dsl/differentiate.h"
#include "schedules/choose.h"
#include "schedules/choose_windows.h"
#include "schedules/convolve.h"
#include "schedules/halo_convolution.h"
#include "schedules/plan_groups.h"
#include "verify/fuzz_scheduled.h"

namespace tw::fuzz {
namespace {

using schedules::ConvolutionPass;
using schedules::ConvolutionShape;
using schedules::ConvolutionTiles;
using schedules::HaloTiles;
using schedules::Layout;

int64_t random_channels(Random& random) {
    return random.chance(0.5) ? 8 * random.between(1, 10) : random.between(1, 40);
}

/// With those of a group's filters and other groups' channels, which are zeros where groups are joined.
double products_of(const ConvolutionShape& s) {
    return static_cast<double>(s.images * s.rows() * s.columns() * s.kernel_h * s.kernel_w) *
           static_cast<double>(s.channels * s.filters);
}
constexpr double most_interpreted = 2e7;  // some ten seconds

ConvolutionShape random_shape(Random& random) {
    ConvolutionShape s{.images = random.between(1, 3),
                       .height = random.between(1, 12),
                       .width = random.between(1, 12),
                       .channels = random_channels(random),
                       .filters = random_channels(random),
                       .kernel_h = random.between(1, 5),
                       .kernel_w = random.between(1, 5),
                       .stride = random.chance(0.5) ? 1 : random.between(2, 3),
                       .padding = random.between(0, 3),
                       .dilation = random.chance(0.7) ? 1 : 2,
                       .type = random.chance(0.5) ? bf16 : f16,
                       .layout = random.chance(0.7) ? Layout::ChannelsLast : Layout::ChannelsFirst};
    if (random.chance(0.3)) s.groups = random.between(2, 6), s.channels *= s.groups, s.filters *= s.groups;
    s.height = std::max(s.height, (s.kernel_h - 1) * s.dilation + 1 - 2 * s.padding);
    s.width = std::max(s.width, (s.kernel_w - 1) * s.dilation + 1 - 2 * s.padding);
    while (products_of(s) > most_interpreted && s.filters > s.groups)
        s.filters = (s.filters / s.groups + 1) / 2 * s.groups;
    return s;
}

/// Of a raster, with what fills up rows of the unit and lines of channels: what the emulator multiplies.
double products_over_places(const ConvolutionShape& s) {
    auto whole = [](int64_t extent) { return static_cast<double>((extent + 63) / 64 * 64); };
    return static_cast<double>(s.images * (s.height + s.padding) * (s.width + s.padding) * s.kernel_h * s.kernel_w) *
           whole(s.channels) * whole(s.filters);
}
constexpr double most_emulated = 3e8;  // some ten seconds

ConvolutionTiles random_tiles(Random& random, const schedules::Convolution& c) {
    const schedules::ConvolutionForm form =
        schedules::window_product(c.product, {c.result}).value_or(schedules::WindowProduct()).form;
    const bool sums_pixels = form.sums_pixels;
    const bool joins_taps = sums_pixels && !form.taps.empty() && random.chance(0.5);
    const int warpgroups = sums_pixels && form.group > 0 ? 1 : static_cast<int>(random.between(1, 2));
    ConvolutionTiles tiles{.rows = 64 * warpgroups,
                           .columns = sums_pixels      ? 64
                                      : form.group > 0 ? 16
                                                       : 32 * random.between(1, 3),
                           .terms = !sums_pixels && form.group > 0 ? 16
                                    : random.chance(0.5)           ? 64
                                                                   : 32,
                           .warpgroups = warpgroups,
                           .stages = joins_taps ? 2 : static_cast<int>(random.between(2, 4)),
                           .parts = sums_pixels || (form.group == 0 && !form.has_phases() && random.chance(0.3))
                                        ? random.between(1, 3)
                                        : 1,
                           .ping_pong = random.chance(0.25) ? 2 : 1,
                           .taps = joins_taps ? form.taps.back() : 1};
    const bool has_boxes = !sums_pixels && !form.has_phases() && form.extents.columns % 8 == 0 &&
                           form.extents.rows >= tiles.rows && form.extents.columns >= tiles.columns && form.group == 0;
    if (has_boxes && tiles.parts == 1 && random.chance(0.7))
        tiles.box_columns = tiles.columns % 64 == 0 && random.chance(0.5) ? 64 : 32;
    if (tiles.box_columns > 0 && tiles.columns / tiles.box_columns % 2 == 0 && random.chance(0.5)) tiles.box_stages = 2;
    return tiles;
}

/// Of one to three dimensions, as networks declare them.
struct Layer {
    std::vector<int64_t> x, weight;
    schedules::ConvolutionOptions options;
    Type type;
};

Layer random_layer(Random& random) {
    Layer layer{.x = {random.between(1, 3)}, .weight = {}, .options = {}, .type = random.chance(0.5) ? bf16 : f16};
    schedules::ConvolutionOptions& o = layer.options;
    o = {.stride = {}, .dilation = {}, .padding = {}, .groups = random.chance(0.7) ? 1 : random.between(2, 3)};
    o.unit = random.chance(0.5) ? 1 : 8;
    layer.weight.push_back(o.groups * (random.chance(0.7) ? 16 : 1) * random.between(1, 5));
    const int64_t dimensions = random.between(1, 3), most = dimensions == 1 ? 60 : dimensions == 2 ? 12 : 6;
    for (int64_t d = 0; d < dimensions; ++d) {
        o.stride.push_back(random.chance(0.5) ? 1 : random.between(2, 3));
        o.dilation.push_back(random.chance(0.7) ? 1 : 2);
        o.padding.emplace_back(random.between(0, 2), random.between(0, 2));
        layer.weight.push_back(random.between(1, 4));
        const int64_t least =
            (layer.weight.back() - 1) * o.dilation.back() + 1 - o.padding.back().before - o.padding.back().after;
        layer.x.push_back(std::max(random.between(1, most), least));
    }
    const bool is_depthwise = random.chance(0.3);
    const int64_t channels = is_depthwise ? 1 : (random.chance(0.7) ? 16 : 1) * random.between(1, 5);
    if (is_depthwise) o.groups = layer.weight[0];
    layer.weight.push_back(channels);
    layer.x.push_back(channels * o.groups);
    if (random.chance(0.4)) o.layout = Layout::ChannelsFirst;
    layer.x = in_layout(o.layout, layer.x), layer.weight = in_layout(o.layout, layer.weight);
    return layer;
}

Proposal propose_layer(Random& random, const Target& target) {
    const Layer layer = random_layer(random);
    const Tensor x = input("x", layer.type, {layer.x.begin(), layer.x.end()}),
                 w = input("w", layer.type, {layer.weight.begin(), layer.weight.end()});
    Tensor result = schedules::convolve("y", x, w, {}, layer.options);
    const int64_t pass = random.below(3);
    if (pass > 0) {
        const Tensor dy = input("dy", layer.type, {result.shape().begin(), result.shape().end()});
        result = gradients(result, dy, {pass == 1 ? x : w})[0];
    }
    return {.text = fmt::format("layer: {}", to_string(*result.operation())), .kind = "layer", .schedule = [=] {
                return schedules::choose_schedule({result}, target);
            }};
}

}  // namespace

Summary fuzz_convolutions(const FuzzOptions& options) {
    return fuzz_scheduled(options, [](Random& random) {
        constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                              ConvolutionPass::WeightGradient};
        constexpr const char* names[] = {"forward", "data gradient", "weight gradient"};
        Target some = target("sm_90a");
        some.multiprocessors = static_cast<int>(random.between(1, 6));  // so that blocks have several tiles in turn
        if (random.chance(0.3)) return propose_layer(random, some);
        const ConvolutionShape shape = random_shape(random);
        const int64_t which = random.below(3);
        const ConvolutionPass pass = passes[which];
        const bool pads_groups = shape.groups > 1 && random.chance(0.3);
        const schedules::Convolution c = pads_groups ? declare_convolution(shape, pass, padded_groups(shape, pass))
                                                     : declare_convolution(shape, pass);
        const int64_t leaving = 16 * random.between(1, 3);
        const bool sums_places = pass == ConvolutionPass::WeightGradient;
        const HaloTiles halo{
            .places = leaving * random.between(1, 5),
            .leaving = leaving,
            .stages = static_cast<int>(random.between(2, 3)),
            .ping_pong = static_cast<int>(random.between(1, 2)),
            .warpgroups = sums_places ? 1 : static_cast<int>(random.between(1, 2)),
            .weight_stages = !sums_places && random.chance(0.5) ? static_cast<int>(random.between(2, 5)) : 0,
            .parts = sums_places ? random.between(1, 4) : 1};
        const bool with_halo = random.chance(0.7) && shape.layout == Layout::ChannelsLast &&
                               halo.warpgroups * halo.ping_pong <= 3 && products_over_places(shape) < most_emulated &&
                               takes_halo(shape, pass, halo, some);
        const std::optional<ConvolutionTiles> tiles =
            random.chance(0.7) ? std::optional(random_tiles(random, c)) : std::nullopt;
        return Proposal{
            .text =
                fmt::format("{} of {} images of {} x {} x {}, {} filters of {} x {}, stride {}, padding "
                            "{}, dilation {}, {} groups{}, channels {}, {} on {} multiprocessors",
                            names[which], shape.images, shape.height, shape.width, shape.channels, shape.filters,
                            shape.kernel_h, shape.kernel_w, shape.stride, shape.padding, shape.dilation, shape.groups,
                            pads_groups ? " one by one" : "", shape.layout == Layout::ChannelsFirst ? "first" : "last",
                            with_halo ? "a halo"
                            : tiles   ? "drawn tiles"
                                      : "tiles of the model",
                            some.multiprocessors),
            .kind = names[which],
            .schedule = [=] {
                if (with_halo)
                    return halo_schedule(declare_halo_convolution(shape, pass, halo.whole_places()), halo, some);
                return convolution_schedule(c, shape, tiles, some);
            }};
    });
}

}  // namespace tw::fuzz

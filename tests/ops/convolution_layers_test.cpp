// Convolutions as declared and as layers: shapes, strides, dilations, paddings and groups at random against loops over
// plain numbers in float64, every gradient against finite differences, infinities, narrow types, refusals.
#include <limits>

#include "dsl/differentiate.h"
#include "ops/autograd.h"
#include "ops/convolution.h"
#include "tests/dsl/expect_gradients.h"
#include "tests/ops/on_each_device.h"
#include "tests/ops/random_windows.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using schedules::ConvolutionOptions;
using schedules::convolve;
using schedules::convolve_transposed;
using schedules::Layout;
using schedules::TransposedOptions;

struct Case {
    RandomWindows w;
    int64_t images, groups, group_channels, group_filters;
    PaddingMode mode = PaddingMode::Zeros;
    bool has_bias = false;
    Layout layout = Layout::ChannelsLast;

    int64_t channels() const { return groups * group_channels; }
    int64_t filters() const { return groups * group_filters; }
    ConvolutionOptions options() const {
        return {.stride = w.stride,
                .dilation = w.dilation,
                .padding = w.padding,
                .groups = groups,
                .mode = mode,
                .layout = layout};
    }
    /// From the order of [first, inner..., channel] to that of the layout, and back.
    std::vector<int64_t> own(const std::vector<int64_t>& all) const { return in_layout(layout, all); }
    std::vector<int64_t> last(const std::vector<int64_t>& all) const { return with_channels_last(layout, all); }

    Tensor x(Type type) const {
        return input("x", type, shape_of_extents(own(indices(images, w.extents, channels()))));
    }
    Tensor weight(Type type) const {
        return input("w", type, shape_of_extents(own(indices(filters(), w.taps, group_channels))));
    }
    Tensor bias(Type type, int64_t extent) const { return has_bias ? input("b", type, {extent}) : Tensor(); }
    std::string text() const {
        return w.text() + fmt::format("{} images, {} groups of {} channels and {} filters, mode {}, layout {}", images,
                                      groups, group_channels, group_filters, static_cast<int>(mode),
                                      static_cast<int>(layout));
    }
};

bool has_border(const Case& c) {
    if (c.mode == PaddingMode::Zeros || c.mode == PaddingMode::Replicate) return true;
    for (size_t d = 0; d < c.w.dimensions(); ++d) {
        const int64_t most = c.w.extents[d] - (c.mode == PaddingMode::Reflect ? 1 : 0);
        if (std::max(c.w.padding[d].before, c.w.padding[d].after) > most) return false;
    }
    return true;
}

Case random_case(Draw& draw, PaddingMode mode) {
    Case c;
    do {
        const int64_t dimensions = draw.between(1, 3), most = dimensions == 1 ? 7 : dimensions == 2 ? 4 : 3;
        c = {random_windows(draw, dimensions, most, 2),
             draw.between(1, 2),
             draw.between(1, 3),
             draw.between(1, 2),
             draw.between(1, 2),
             mode,
             draw.between(0, 1) == 1,
             draw.between(0, 1) == 1 ? Layout::ChannelsFirst : Layout::ChannelsLast};
    } while (!has_border(c));
    return c;
}

std::vector<Tensor> defined(std::vector<Tensor> tensors) {
    std::erase_if(tensors, [](const Tensor& t) { return !t.defined(); });
    return tensors;
}

double real(const HostArray& array, const std::vector<int64_t>& at) { return array.at(at).real; }
double bias_at(const Bindings& b, int64_t channel) {
    return b.inputs.count("b") ? real(b.inputs.at("b"), {channel}) : 0;
}

double expected_convolution(const Case& c, const Bindings& b, const std::vector<int64_t>& place_of_result) {
    const std::vector<int64_t> at = c.last(place_of_result);
    double total = bias_at(b, at.back());
    const int64_t group = at.back() / c.group_filters;
    each_tap(c.w, inner_of(at), c.mode, [&](const auto& tap, const auto& place) {
        for (int64_t k = 0; place && k < c.group_channels; ++k)
            total += real(b.inputs.at("x"), c.own(indices(at[0], *place, group * c.group_channels + k))) *
                     real(b.inputs.at("w"), c.own(indices(at.back(), tap, k)));
    });
    return total;
}

std::string name_of_mode(PaddingMode mode) {
    const std::vector<std::string> names = {"Zeros", "Reflect", "Replicate", "Circular"};
    return names[static_cast<size_t>(mode)];
}

class EachMode : public testing::TestWithParam<PaddingMode> {};

TEST_P(EachMode, RandomConvolutionsAndTheirGradients) {
    Draw draw(static_cast<unsigned>(GetParam()) + 40);
    for (int n = 0; n < 50; ++n) {
        const Case c = random_case(draw, GetParam());
        SCOPED_TRACE(c.text());
        const Tensor x = c.x(f64), w = c.weight(f64), b = c.bias(f64, c.filters());
        const Tensor y = convolve("y", x, w, b, c.options());
        const std::vector<Tensor> inputs = defined({x, w, b});
        const Bindings bindings = random_inputs(inputs, static_cast<uint64_t>(n));
        for (size_t d = 0; d < c.w.dimensions(); ++d) ASSERT_EQ(c.last(extents_of(y))[d + 1], c.w.windows(d));
        expect_elements(interpret_plain({y}, bindings)[0], 1e-13,
                        [&](const auto& at) { return expected_convolution(c, bindings, at); });
        expect_gradients(y, inputs, bindings);
        if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Convolve, EachMode,
                         testing::Values(PaddingMode::Zeros, PaddingMode::Reflect, PaddingMode::Replicate,
                                         PaddingMode::Circular),
                         [](const auto& info) { return name_of_mode(info.param); });

/// Each element of x is spread over the windows that its taps reach.
HostArray expected_transposed(const Case& c, const Bindings& b, const std::vector<int64_t>& shape,
                              const std::vector<int64_t>& counts) {
    HostArray y = host_array(f64, shape);
    std::vector<int64_t> at(shape.size(), 0);
    do y.set(at, make_value(f64, bias_at(b, c.last(at).back())));
    while (advance(at, shape));
    RandomWindows w = c.w;
    w.extents = inner_of(c.last(shape));
    std::vector<int64_t> window(counts.size(), 0);
    do
        each_tap(w, window, PaddingMode::Zeros, [&](const auto& tap, const auto& place) {
            for (int64_t n = 0; place && n < c.images; ++n)
                for (int64_t f = 0; f < c.filters(); ++f)
                    for (int64_t k = 0; k < c.group_channels; ++k) {
                        const auto to = c.own(indices(n, *place, f / c.group_filters * c.group_channels + k));
                        y.set(to, make_value(f64, real(y, to) + real(b.inputs.at("x"), c.own(indices(n, window, f))) *
                                                                    real(b.inputs.at("w"), c.own(indices(f, tap, k)))));
                    }
        });
    while (advance(window, counts));
    return y;
}

TEST(ConvolveTransposed, RandomOnesAndTheirGradients) {
    Draw draw(77);
    for (int n = 0; n < 30;) {
        const Case c = random_case(draw, PaddingMode::Zeros);
        TransposedOptions options{.stride = c.w.stride,
                                  .dilation = c.w.dilation,
                                  .padding = c.w.padding,
                                  .output_padding = {},
                                  .groups = c.groups,
                                  .layout = c.layout};
        std::vector<int64_t> results;
        for (size_t d = 0; d < c.w.dimensions(); ++d) {
            options.output_padding.push_back(draw.between(0, c.w.stride[d] - 1));
            results.push_back((c.w.extents[d] - 1) * c.w.stride[d] - c.w.padding[d].before - c.w.padding[d].after +
                              (c.w.taps[d] - 1) * c.w.dilation[d] + 1 + options.output_padding[d]);
        }
        if (*std::min_element(results.begin(), results.end()) < 1) continue;
        ++n;
        SCOPED_TRACE(c.text());
        const Tensor x = input("x", f64, shape_of_extents(c.own(indices(c.images, c.w.extents, c.filters()))));
        const Tensor w = c.weight(f64), b = c.bias(f64, c.channels());
        const Tensor y = convolve_transposed("y", x, w, b, options);
        ASSERT_EQ(extents_of(y), c.own(indices(c.images, results, c.channels())));
        const Bindings bindings = random_inputs(defined({x, w, b}), static_cast<uint64_t>(n));
        const HostArray expected = expected_transposed(c, bindings, extents_of(y), c.w.extents);
        expect_elements(interpret_plain({y}, bindings)[0], 1e-13, [&](const auto& at) { return real(expected, at); });
        expect_gradients(y, defined({x, w, b}), bindings);
        if (HasFatalFailure()) return;
    }
}

/// What an infinite or NaN element of x may spoil are the windows that read it, and what one of dy may, the elements
/// that these read; the border of zeros is never multiplied with.
TEST(Convolve, InfinitiesReachTheirWindowsOnly) {
    Draw draw(5);
    for (int n = 0; n < 24; ++n) {
        const Case c = random_case(draw, n % 2 ? PaddingMode::Zeros : PaddingMode::Replicate);
        SCOPED_TRACE(c.text());
        const Tensor x = c.x(f32), w = c.weight(f32);
        const Tensor y = convolve("y", x, w, {}, c.options()), dy = input("dy", f32, shape_of_extents(extents_of(y)));
        Bindings bindings = random_inputs({x, w, dy}, static_cast<uint64_t>(n));
        HostArray& image = bindings.inputs.at("x");
        std::vector<int64_t> hit;
        for (int64_t extent : image.shape) hit.push_back(draw.between(0, extent - 1));
        const double poison = n % 3 ? std::numeric_limits<double>::infinity() : std::nan("");
        image.set(hit, make_value(f32, poison));
        auto reads_it = [&](const std::vector<int64_t>& at) {
            bool found = false;
            const std::vector<int64_t> of = c.last(at), poisoned = c.last(hit);
            each_tap(c.w, inner_of(of), c.mode,
                     [&](const auto&, const auto& place) { found |= place && *place == inner_of(poisoned); });
            return found && of[0] == poisoned[0] && of.back() / c.group_filters == poisoned.back() / c.group_channels;
        };
        const HostArray got = interpret_plain({y}, bindings)[0];
        std::vector<int64_t> at(got.shape.size(), 0);
        do ASSERT_EQ(!std::isfinite(real(got, at)), reads_it(at)) << indices_text(at);
        while (advance(at, got.shape));
        const HostArray dx = interpret_plain({gradients(y, dy, {x})[0]}, bindings)[0];
        at.assign(dx.shape.size(), 0);
        do ASSERT_TRUE(std::isfinite(real(dx, at))) << "dx " << indices_text(at);
        while (advance(at, dx.shape));
    }
}

TEST(Convolve, Refusals) {
    const Tensor x = input("x", f32, {2, 8, 6, 4}), w = input("w", f32, {6, 3, 3, 4}), none;
    EXPECT_ERROR(
        convolve("y", input("x", f32, {2, 4}), w, none, {}),
        "convolution: x is f32 [2, 4], the weight f32 [6, 3, 3, 4]; give x [images, extents..., channels] and a "
        "weight [filters, taps..., channels of a group]");
    EXPECT_ERROR(convolve("y", input("x", bf16, {2, 8, 6, 4}), w, none, {}), "x is bf16 [2, 8, 6, 4], the weight f32");
    EXPECT_ERROR(convolve("y", x, w, none, {.groups = 4}),
                 "4 groups do not divide the 6 filters of the weight [6, 3, 3, 4]");
    EXPECT_ERROR(convolve("y", x, w, none, {.groups = 2}),
                 "x is [2, 8, 6, 4], the weight [6, 3, 3, 4], in 2 groups; the last "
                 "extent of the weight times the groups must be the channels of x");
    EXPECT_ERROR(convolve("y", x, w, input("b", f32, {4}), {}),
                 "the weight is f32 [6, 3, 3, 4], the bias f32 [4]; give a bias "
                 "[6]");
    EXPECT_ERROR(convolve("y", x, w, none, {.stride = {1, 2, 3}}),
                 "stride has 3 entries, images of x [2, 8, 6, 4] have 2 dimensions");
    EXPECT_ERROR(convolve("y", x, w, none, {.unit = 0}),
                 "a unit of 0 channels; give 1 for channels as they are, or a multiple");
    EXPECT_ERROR(convolve("y", x, w, none, {.stride = {0}}),
                 "along dimension 1 of x [2, 8, 6, 4] lie 3 taps, stride 0");
    EXPECT_ERROR(convolve("y", x, w, none, {.padding = {{0, -1}}}),
                 "padding 0 and -1; taps, strides and dilations are 1");
    EXPECT_ERROR(
        convolve("y", x, w, none, {.dilation = {3}}),
        "3 taps with dilation 3 span 7 elements, dimension 2 of x [2, 8, 6, 4] has 6 with its padding of 0 and 0");
    EXPECT_ERROR(
        convolve("y", x, w, none, {.padding = {{1, 8}, 1}, .mode = PaddingMode::Reflect}),
        "a reflecting border of 1 and 8 elements has no place at dimension 1 of 'x' [2, 8, 6, 4]; give sides from "
        "0 to 7");
    EXPECT_ERROR(convolve("y", x, w, none, {.padding = {1, 7}, .mode = PaddingMode::Circular}),
                 "a circular border of 7 and 7 elements");
    EXPECT_ERROR(schedules::bordered("border", x, {-1}, PaddingMode::Replicate),
                 "a replicating border of -1 and -1 elements");
    const Expr height = size("height", {.min = 3, .max = 9});
    EXPECT_ERROR(convolve("y", input("x", f32, {2, height, 6, 4}), w, none, {}),
                 "dimension 1 of 'x' [2, height, 6, 4] is a named size; only the number of images may be one");
    EXPECT_ERROR(schedules::window_dimensions("windows", x, {3}, {}), "x is [2, 8, 6, 4], for windows of 1 dimensions");
}

TEST(ConvolveTransposed, Refusals) {
    const Tensor x = input("x", f32, {2, 8, 4}), w = input("w", f32, {4, 3, 5}), none;
    EXPECT_ERROR(convolve_transposed("y", input("x", f32, {2, 8, 5}), w, none, {}),
                 "x is [2, 8, 5], the weight [4, 3, 5]; the last extent of x must be the first of the weight");
    EXPECT_ERROR(convolve_transposed("y", x, w, none, {.stride = {2}, .output_padding = {2}}),
                 "output_padding 2 with stride 2 along dimension 1 of x [2, 8, 4]; give 0 to 1");
    EXPECT_ERROR(convolve_transposed("y", x, w, none, {.padding = {5}}),
                 "dimension 1 of x [2, 8, 4] would become 0, with 3 taps, stride 1, dilation 1 and 5 and 5 cut off");
    EXPECT_ERROR(convolve_transposed("y", x, w, input("b", f32, {4}), {}), "the bias f32 [4]; give a bias [5]");
}

TEST(Convolve, TakesAnyNumberOfImages) {
    const Expr images = size("images", {.min = 1, .max = 5});
    const Tensor x = input("x", f64, {images, 5, 2}), w = input("w", f64, {3, 2, 2});
    const Tensor y = convolve("y", x, w, {}, {.padding = {1}, .mode = PaddingMode::Circular});
    Bindings bindings;
    bindings.inputs = {{"x", host_array(f64, {4, 5, 2})}, {"w", host_array(f64, {3, 2, 2})}};
    bindings.sizes["images"] = 4;
    EXPECT_EQ(interpret_plain({y}, bindings)[0].shape, (std::vector<int64_t>{4, 6, 3}));
}

/// sum(y * c)
nn::Tensor weighted(const nn::Tensor& y, const nn::Tensor& c) {
    static const nn::Operator op("weighted", [](const std::vector<Tensor>& in) {
        std::vector<Axis> axes;
        for (const Expr& extent : in[0].shape()) axes.push_back(reduce_axis("r", extent));
        const std::vector<Operand> at(axes.begin(), axes.end());
        return compute("loss", {}, [&] { return sum(cast(f32, in[0].read(at)) * in[1].read(at), axes); });
    });
    return op({y, c});
}

nn::Tensor narrowed(const nn::Tensor& x) {
    static const nn::Operator op("narrow", [](const std::vector<Tensor>& in) {
        return compute("narrow", shape_of_extents(extents_of(in[0])), [&](const std::vector<Expr>& at) {
            return cast(bf16, in[0].read({at.begin(), at.end()}));
        });
    });
    return op({x});
}

class ConvolutionLayers : public OnEachDevice {
protected:
    void SetUp() override {
        OnEachDevice::SetUp();
        if (device_) backend_ = std::make_shared<nn::Backend>(device_);
    }

    nn::Tensor random(Type type, const std::vector<int64_t>& shape, uint64_t seed, const std::string& name) const {
        HostArray host = host_array(type, shape);
        fill_uniform(host, -1, 1, seed);
        return nn::Tensor(backend_, host, name);
    }

    /// Images and filters of two bytes, whole numbers, with gradients by all leaves.
    void expect_exact(const Case& c) const {
        const Tensor x = c.x(f32), w = c.weight(f32), b = c.bias(f32, c.filters());
        const Tensor y = convolve("y", x, w, b, c.options()), dy = input("dy", f32, shape_of_extents(extents_of(y)));
        Bindings bindings = random_inputs({x, w, b, dy}, 8);
        uint64_t seed = 1;
        for (auto& [name, array] : bindings.inputs) fill_integers(array, -2, 2, seed++);  // all results are exact
        std::vector<nn::Tensor> leaves;
        for (const char* name : {"x", "w", "b"})
            leaves.push_back(nn::Tensor(backend_, bindings.inputs.at(name), name).set_requires_grad());
        const auto conv = c.w.dimensions() == 1 ? nn::conv1d : nn::conv2d;
        const nn::Tensor result =
            conv(narrowed(leaves[0]), narrowed(leaves[1]), leaves[2], c.options(), std::source_location::current());
        EXPECT_EQ(result.type(), bf16);
        expect_elements(result.to_host(), 0, [&](const auto& at) { return expected_convolution(c, bindings, at); });
        nn::backward(weighted(result, nn::Tensor(backend_, bindings.inputs.at("dy"))));
        const auto exact = interpret_plain(gradients(y, dy, {x, w, b}), bindings);
        for (size_t i = 0; i < leaves.size(); ++i)
            expect_elements(leaves[i].grad().to_host(), 0, [&](const auto& at) { return real(exact[i], at); });
    }

    std::shared_ptr<nn::Backend> backend_;
};
TW_ON_EACH_DEVICE(ConvolutionLayers);

/// Through the tape, with kernels, against the declaration's values and gradients in float64.
TEST_P(ConvolutionLayers, KernelsAgreeWithTheDeclaration) {
    Draw draw(9);
    for (int n = 0; n < 6; ++n) {
        Case c = random_case(draw, static_cast<PaddingMode>(n % 4));
        c.has_bias = true;
        SCOPED_TRACE(c.text());
        const Tensor x = c.x(f32), w = c.weight(f32), b = c.bias(f32, c.filters());
        const Tensor y = convolve("y", x, w, b, c.options()), dy = input("dy", f32, shape_of_extents(extents_of(y)));
        const Bindings bindings = random_inputs({x, w, b, dy}, static_cast<uint64_t>(n));
        std::vector<nn::Tensor> leaves;
        for (const char* name : {"x", "w", "b"})
            leaves.push_back(nn::Tensor(backend_, bindings.inputs.at(name), name).set_requires_grad());
        const auto conv = c.w.dimensions() == 1 ? nn::conv1d : c.w.dimensions() == 2 ? nn::conv2d : nn::conv3d;
        const nn::Tensor result = conv(leaves[0], leaves[1], leaves[2], c.options(), std::source_location::current());
        expect_elements(result.to_host(), 1e-5, [&](const auto& at) { return expected_convolution(c, bindings, at); });
        nn::backward(weighted(result, nn::Tensor(backend_, bindings.inputs.at("dy"))));
        const std::vector<HostArray> exact = interpret_plain(gradients(y, dy, {x, w, b}), bindings, Precision::Float64);
        for (size_t i = 0; i < leaves.size(); ++i)
            expect_elements(leaves[i].grad().to_host(), 1e-5, [&](const auto& at) { return real(exact[i], at); });
    }
}

/// Operands of two bytes; sums are f32, so that one rounding of the result is all that is lost.
TEST_P(ConvolutionLayers, NarrowTypes) {
    for (Type type : {bf16, f16}) {
        const nn::Tensor x = random(type, {2, 5, 6, 8}, 1, "x"), w = random(type, {4, 3, 3, 4}, 2, "w");
        const nn::Tensor b = random(type, {4}, 3, "b"), t = random(type, {2, 4, 4}, 4, "t"),
                         wt = random(type, {4, 3, 3}, 5, "wt");
        const Case c{{{5, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}, 2, 2, 4, 2};
        Bindings bindings;
        bindings.inputs = {{"x", x.to_host()}, {"w", w.to_host()}, {"b", b.to_host()}};
        const double tolerance = 1.1 * unit_roundoff(type);
        const nn::Tensor y = nn::conv2d(x, w, b, {.padding = {1}, .groups = 2});
        EXPECT_EQ(y.type(), type);
        expect_elements(y.to_host(), tolerance, [&](const auto& at) { return expected_convolution(c, bindings, at); });
        const Case transposed{{{4}, {3}, {2}, {1}, {0}}, 2, 1, 3, 4};
        bindings.inputs = {{"x", t.to_host()}, {"w", wt.to_host()}};
        const nn::Tensor grown = nn::conv_transpose(t, wt, {}, {.stride = {2}});
        const HostArray expected = expected_transposed(transposed, bindings, {2, 9, 3}, {4});
        expect_elements(grown.to_host(), tolerance, [&](const auto& at) { return real(expected, at); });
    }
}

/// Images and filters of two bytes between leaves and a loss of four.
TEST_P(ConvolutionLayers, GradientsPassNarrowTypes) {
    const Case c{{{5, 6}, {3, 3}, {2, 1}, {1, 1}, {1, 1}}, 2, 2, 4, 2};
    const Tensor x = c.x(f32), w = c.weight(f32), y = convolve("y", x, w, {}, c.options());
    const Tensor dy = input("dy", f32, shape_of_extents(extents_of(y)));
    const Bindings bindings = random_inputs({x, w, dy}, 6);
    std::vector<nn::Tensor> leaves;
    for (const char* name : {"x", "w"})
        leaves.push_back(nn::Tensor(backend_, bindings.inputs.at(name), name).set_requires_grad());
    const nn::Tensor result = nn::conv2d(narrowed(leaves[0]), narrowed(leaves[1]), {}, c.options());
    EXPECT_EQ(result.type(), bf16);
    nn::backward(weighted(result, nn::Tensor(backend_, bindings.inputs.at("dy"))));
    const auto exact = interpret_plain(gradients(y, dy, {x, w}), bindings, Precision::Float64);
    for (size_t i = 0; i < 2; ++i)
        expect_elements(leaves[i].grad().to_host(), 0.03, [&](const auto& at) { return real(exact[i], at); });
}

/// Few channels, which layers copy for tensor cores where there are any.
TEST_P(ConvolutionLayers, NarrowImagesOfFewChannels) {
    for (const Layout layout : {Layout::ChannelsLast, Layout::ChannelsFirst})
        for (const Case& c :
             {Case{{{9, 8}, {3, 3}, {2, 1}, {1, 1}, {1, 1}}, 2, 1, 3, 16, PaddingMode::Zeros, true, layout},
              Case{{{40}, {5}, {1}, {1}, {2}}, 2, 1, 3, 16, PaddingMode::Zeros, true, layout}}) {
            SCOPED_TRACE(c.text());
            expect_exact(c);
        }
}

/// Kernels are built once for options and shapes, whatever calls them.
TEST_P(ConvolutionLayers, LayersShareKernels) {
    const nn::Conv2d first(backend_, 2, 3, {3}, 1, {.padding = {1}}),
        second(backend_, 2, 3, {3, 3}, 2, {.padding = {1}});
    const nn::Tensor x = random(f32, {1, 4, 4, 2}, 1, "x");
    const nn::Tensor y = first(x);
    EXPECT_EQ(y.shape(), (std::vector<int64_t>{1, 4, 4, 3}));
    const size_t built = backend_->num_built();
    second(x);
    EXPECT_EQ(backend_->num_built(), built);
    nn::conv2d(x, first.parameters()[0], first.parameters()[1], {.padding = {2}});
    EXPECT_GT(backend_->num_built(), built);
    const std::vector<float> start = first.parameters()[0].data().read<float>();
    EXPECT_EQ(nn::Conv2d(backend_, 2, 3, {3}, 1).parameters()[0].data().read<float>(), start);
    for (float value : start) EXPECT_LE(std::fabs(value), 1 / std::sqrt(18.0f));
    EXPECT_TRUE(first.parameters()[1].requires_grad());
}

TEST_P(ConvolutionLayers, Errors) {
    const nn::Tensor x = random(f32, {1, 4, 4, 2}, 1, "x"), w = random(f32, {3, 3, 3, 3}, 1, "w");
    const std::string file = "convolution_layers_test.cpp";
    EXPECT_ERROR(nn::conv1d(x, w), fmt::format("{}:{}: conv1d: x is [1, 4, 4, 2], the weight [3, 3", file, __LINE__));
    EXPECT_ERROR(nn::conv2d(x, w), fmt::format("{}:{}: convolution: x is [1, 4, 4, 2]", file, __LINE__));
    EXPECT_ERROR((nn::Conv2d(backend_, 2, 3, {3, 3, 3}, 1)), "Conv2d: 3 numbers of taps");
    EXPECT_ERROR((nn::Conv2d(backend_, 2, 3, {3}, 1, {.groups = 2})),
                 "2 groups do not divide 2 channels and 3 filters");
}

}  // namespace
}  // namespace tw

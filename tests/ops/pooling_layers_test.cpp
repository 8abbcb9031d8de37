// Pooling and up-sampling as declared and as layers: random windows against loops over plain numbers in float64, every
// gradient against finite differences, ties, infinities and NaN, narrow types, refusals.
#include <limits>

#include "dsl/differentiate.h"
#include "ops/autograd.h"
#include "ops/pooling.h"
#include "tests/dsl/expect_gradients.h"
#include "tests/ops/on_each_device.h"
#include "tests/ops/random_windows.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using schedules::CountPadding;
using schedules::PoolingOptions;

constexpr double infinite = std::numeric_limits<double>::infinity();

struct Case {
    RandomWindows w;
    int64_t images, channels;
    bool ceil_mode = false;

    PoolingOptions options() const {
        return {
            .window = w.taps, .stride = w.stride, .dilation = w.dilation, .padding = w.padding, .ceil_mode = ceil_mode};
    }
    /// With ceil_mode there is one more as long as the last does not reach the end, and the next begins before it.
    int64_t windows(size_t d) const {
        if (!ceil_mode) return w.windows(d);
        int64_t count = 0, next = -w.padding[d].before;
        while (next < w.extents[d] &&
               next - w.stride[d] + (w.taps[d] - 1) * w.dilation[d] + 1 < w.extents[d] + w.padding[d].after)
            ++count, next += w.stride[d];
        return count;
    }
    std::string text() const { return w.text() + (ceil_mode ? "ceil_mode" : ""); }
    std::vector<int64_t> shape() const { return indices(images, w.extents, channels); }
    Tensor x(Type type) const { return input("x", type, shape_of_extents(shape())); }
};

/// The padding is less than a window.
bool is_pooled(const RandomWindows& w) {
    for (size_t d = 0; d < w.dimensions(); ++d)
        if (std::max(w.padding[d].before, w.padding[d].after) > (w.taps[d] - 1) * w.dilation[d]) return false;
    return true;
}

Case random_case(Draw& draw) {
    Case c;
    do {
        const int64_t dimensions = draw.between(1, 3), most = dimensions == 1 ? 9 : dimensions == 2 ? 5 : 4;
        c = {random_windows(draw, dimensions, most, 3), draw.between(1, 2), draw.between(1, 3),
             draw.between(0, 1) == 1};
    } while (!is_pooled(c.w));
    return c;
}

double real(const HostArray& array, const std::vector<int64_t>& at) { return array.at(at).real; }

struct Largest {
    double value = -infinite;
    int64_t place = -1;
};

/// The first of the largest, or of NaN, in row-major order.
Largest expected_largest(const Case& c, const HostArray& x, const std::vector<int64_t>& at) {
    Largest best;
    each_tap(c.w, inner_of(at), PaddingMode::Zeros, [&](const auto&, const auto& place) {
        if (!place) return;
        int64_t number = 0;
        for (size_t d = 0; d < c.w.dimensions(); ++d) number = number * c.w.extents[d] + (*place)[d];
        const double value = real(x, indices(at[0], *place, at.back()));
        const bool is_better = std::isnan(value) || value > best.value || best.place < 0;
        if (!std::isnan(best.value) && is_better) best = {value, number};
    });
    return best;
}

double expected_mean(const Case& c, const HostArray& x, const std::vector<int64_t>& at, CountPadding count) {
    double total = 0;
    int64_t inside = 0, taps = 0;
    const std::vector<int64_t> window = inner_of(at);
    each_tap(c.w, window, PaddingMode::Zeros, [&](const auto& tap, const auto& place) {
        bool in_padding = true;
        for (size_t d = 0; d < tap.size(); ++d)
            in_padding = in_padding && window[d] * c.w.stride[d] + tap[d] * c.w.dilation[d] <
                                           c.w.padding[d].before + c.w.extents[d] + c.w.padding[d].after;
        taps += in_padding;
        if (!place) return;
        ++inside;
        total += real(x, indices(at[0], *place, at.back()));
    });
    return total / static_cast<double>(count == CountPadding::Yes ? taps : std::max<int64_t>(inside, 1));
}

std::vector<int64_t> place_of(int64_t number, const std::vector<int64_t>& extents) {
    std::vector<int64_t> place(extents.size());
    for (size_t d = extents.size(); d-- > 0; number /= extents[d]) place[d] = number % extents[d];
    return place;
}

TEST(MaxPool, RandomWindowsAndTheirGradients) {
    Draw draw(3);
    for (int n = 0; n < 50; ++n) {
        const Case c = random_case(draw);
        SCOPED_TRACE(c.text());
        const Tensor x = c.x(f64), y = schedules::max_pool("y", x, c.options());
        const Bindings bindings = random_inputs({x}, static_cast<uint64_t>(n));
        const HostArray& image = bindings.inputs.at("x");
        for (size_t d = 0; d < c.w.dimensions(); ++d) ASSERT_EQ(extents_of(y)[d + 1], c.windows(d));
        const auto got = interpret_plain({y, schedules::max_pool_places("places", x, c.options())}, bindings);
        expect_elements(got[0], 0, [&](const auto& at) { return expected_largest(c, image, at).value; });
        bool reads = true;  // each window, something: else the largest is infinite
        expect_elements(got[1], 0, [&](const auto& at) {
            const int64_t place = expected_largest(c, image, at).place;
            reads = reads && place >= 0;
            return double(place);
        });
        if (reads) expect_gradients(y, {x}, bindings);
        if (HasFatalFailure()) return;
    }
}

/// Of few different numbers, infinities and NaN: each element of dy goes to the first largest element of its window.
TEST(MaxPool, TiesInfinitiesAndNaN) {
    Draw draw(4);
    for (int n = 0; n < 50; ++n) {
        const Case c = random_case(draw);
        SCOPED_TRACE(c.text());
        const Tensor x = c.x(f32), y = schedules::max_pool("y", x, c.options());
        const Tensor dy = input("dy", f32, shape_of_extents(extents_of(y)));
        Bindings bindings = random_inputs({x, dy}, static_cast<uint64_t>(n));
        HostArray& image = bindings.inputs.at("x");
        std::vector<int64_t> at(image.shape.size(), 0);
        do image.set(at, make_value(f32, draw.one_of<double>({-1, 0, 2, -infinite, -infinite, infinite, NAN, NAN})));
        while (advance(at, image.shape));
        const auto got = interpret_plain(
            {y, schedules::max_pool_places("places", x, c.options()), gradients(y, dy, {x})[0]}, bindings);
        HostArray expected = host_array(f32, image.shape);
        at.assign(image.shape.size(), 0);
        do {
            const Largest best = expected_largest(c, image, at);
            ASSERT_TRUE(real(got[0], at) == best.value || (std::isnan(best.value) && std::isnan(real(got[0], at))))
                << indices_text(at) << " is " << real(got[0], at) << ", not " << best.value;
            ASSERT_EQ(got[1].at(at).integer, best.place) << indices_text(at);
            if (best.place < 0) continue;
            const auto to = indices(at[0], place_of(best.place, c.w.extents), at.back());
            expected.set(to, make_value(f32, real(expected, to) + real(bindings.inputs.at("dy"), at)));
        } while (advance(at, got[0].shape));
        expect_elements(got[2], 1e-6, [&](const auto& to) { return real(expected, to); });
    }
}

TEST(AveragePool, RandomWindowsAndTheirGradients) {
    Draw draw(5);
    for (int n = 0; n < 50; ++n) {
        const Case c = random_case(draw);
        SCOPED_TRACE(c.text());
        const CountPadding count = n % 2 ? CountPadding::Yes : CountPadding::No;
        const Tensor x = c.x(f64), y = schedules::average_pool("y", x, c.options(), count);
        const Bindings bindings = random_inputs({x}, static_cast<uint64_t>(n));
        expect_elements(interpret_plain({y}, bindings)[0], 1e-14,
                        [&](const auto& at) { return expected_mean(c, bindings.inputs.at("x"), at, count); });
        expect_gradients(y, {x}, bindings);
        if (HasFatalFailure()) return;
    }
}

/// An infinite element is in the means of the windows that read it, and in no others.
TEST(AveragePool, InfinitiesReachTheirWindowsOnly) {
    Draw draw(8);
    for (int n = 0; n < 24; ++n) {
        const Case c = random_case(draw);
        SCOPED_TRACE(c.text());
        const CountPadding count = n % 2 ? CountPadding::Yes : CountPadding::No;
        const Tensor x = c.x(f32), y = schedules::average_pool("y", x, c.options(), count);
        Bindings bindings = random_inputs({x}, static_cast<uint64_t>(n));
        HostArray& image = bindings.inputs.at("x");
        std::vector<int64_t> hit;
        for (int64_t extent : image.shape) hit.push_back(draw.between(0, extent - 1));
        image.set(hit, make_value(f32, n % 3 ? -infinite : std::nan("")));
        expect_elements(interpret_plain({y}, bindings)[0], 1e-6,
                        [&](const auto& at) { return expected_mean(c, image, at, count); });
    }
}

/// torch.nn.functional of 7 elements by windows of 3, stride 3: max_pool1d and avg_pool1d with ceil_mode=True.
TEST(Pooling, CeilModeAddsAWindowThatBeginsInTheImage) {
    const Tensor x = input("x", f32, {1, 7, 1});
    Bindings bindings = random_inputs({x}, 1);
    for (int64_t i = 0; i < 7; ++i) bindings.inputs.at("x").set({0, i, 0}, make_value(f32, double(i + 1)));
    auto results = [&](const PoolingOptions& o, CountPadding count) {
        std::vector<double> all;
        for (const Tensor& y : {schedules::max_pool("y", x, o), schedules::average_pool("y", x, o, count)}) {
            const HostArray got = interpret_plain({y}, bindings)[0];
            for (int64_t p = 0; p < got.shape[1]; ++p) all.push_back(real(got, {0, p, 0}));
        }
        return all;
    };
    using Numbers = std::vector<double>;
    EXPECT_EQ(results({.window = {3}}, CountPadding::Yes), (Numbers{3, 6, 2, 5}));
    EXPECT_EQ(results({.window = {3}, .ceil_mode = true}, CountPadding::Yes), (Numbers{3, 6, 7, 2, 5, 7}));
    EXPECT_EQ(results({.window = {3}, .padding = {1}, .ceil_mode = true}, CountPadding::Yes),
              (Numbers{2, 5, 7, 1, 4, 13.0F / 3}));
    EXPECT_EQ(results({.window = {2}, .stride = {4}, .ceil_mode = true}, CountPadding::No), (Numbers{2, 6, 1.5, 5.5}));
    EXPECT_EQ(results({.window = {9}, .stride = {4}, .ceil_mode = true}, CountPadding::No), (Numbers{7, 4}));
}

TEST(AdaptiveAveragePool, RandomExtentsAndTheirGradients) {
    Draw draw(6);
    for (int n = 0; n < 40; ++n) {
        std::vector<int64_t> extents, results;
        for (int64_t d = draw.between(1, 3); d > 0; --d) {
            extents.push_back(draw.between(1, 7));
            results.push_back(draw.between(1, 5));  // more than there are elements, too
        }
        SCOPED_TRACE(fmt::format("{} to {}", indices_text(extents), indices_text(results)));
        const Tensor x = input("x", f64, shape_of_extents(indices(2, extents, 2)));
        const Tensor y = schedules::adaptive_average_pool("y", x, results);
        const Bindings bindings = random_inputs({x}, static_cast<uint64_t>(n));
        auto expected = [&](const std::vector<int64_t>& at) {
            std::vector<int64_t> begin, length;
            for (size_t d = 0; d < extents.size(); ++d) {
                begin.push_back(at[d + 1] * extents[d] / results[d]);
                length.push_back(((at[d + 1] + 1) * extents[d] + results[d] - 1) / results[d] - begin[d]);
            }
            double total = 0, count = 0;
            std::vector<int64_t> inside(extents.size(), 0);
            do {
                std::vector<int64_t> place = begin;
                for (size_t d = 0; d < place.size(); ++d) place[d] += inside[d];
                total += real(bindings.inputs.at("x"), indices(at[0], place, at.back()));
                ++count;
            } while (advance(inside, length));
            return total / count;
        };
        expect_elements(interpret_plain({y}, bindings)[0], 1e-14, expected);
        expect_gradients(y, {x}, bindings);
        if (HasFatalFailure()) return;
    }
}

/// Along one dimension after the other, at (i + 1/2) / factor - 1/2, no farther than the outer elements.
double expected_linear(const HostArray& x, const std::vector<int64_t>& factors, std::vector<int64_t> at, size_t d) {
    if (d > factors.size()) return real(x, at);
    const double place = std::clamp((double(at[d]) + 0.5) / double(factors[d - 1]) - 0.5, 0.0, double(x.shape[d] - 1));
    const auto first = static_cast<int64_t>(place), second = std::min(first + 1, x.shape[d] - 1);
    at[d] = first;
    const double low = expected_linear(x, factors, at, d + 1);
    at[d] = second;
    return low + (expected_linear(x, factors, at, d + 1) - low) * (place - double(first));
}

TEST(Upsample, RandomFactorsAndTheirGradients) {
    Draw draw(7);
    for (int n = 0; n < 40; ++n) {
        std::vector<int64_t> extents, factors;
        for (int64_t d = draw.between(1, 3); d > 0; --d) {
            extents.push_back(draw.between(1, 4));
            factors.push_back(draw.between(1, 4));
        }
        SCOPED_TRACE(fmt::format("{} by {}", indices_text(extents), indices_text(factors)));
        const Tensor x = input("x", f64, shape_of_extents(indices(1, extents, 2)));
        const Bindings bindings = random_inputs({x}, static_cast<uint64_t>(n));
        const HostArray& image = bindings.inputs.at("x");
        const Tensor nearest = schedules::upsample_nearest("y", x, factors),
                     linear = schedules::upsample_linear("y", x, factors);
        expect_elements(interpret_plain({nearest}, bindings)[0], 0, [&](std::vector<int64_t> at) {
            for (size_t d = 0; d < factors.size(); ++d) at[d + 1] /= factors[d];
            return real(image, at);
        });
        expect_elements(interpret_plain({linear}, bindings)[0], 1e-13,
                        [&](const auto& at) { return expected_linear(image, factors, at, 1); });
        expect_gradients(nearest, {x}, bindings);
        expect_gradients(linear, {x}, bindings);
        if (HasFatalFailure()) return;
    }
}

TEST(Pooling, Refusals) {
    const Tensor x = input("x", f32, {2, 8, 6, 4}), flat = input("flat", f32, {2, 8}),
                 whole = input("n", i32, {2, 8, 6});
    EXPECT_ERROR(schedules::max_pool("y", flat, {.window = {2}}),
                 "max_pool: x is f32 [2, 8]; give floats [images, extents...");
    EXPECT_ERROR(schedules::average_pool("y", whole, {.window = {2}}), "average_pool: x is i32 [2, 8, 6]");
    EXPECT_ERROR(schedules::max_pool("y", x, {.window = {2, 2, 2}}),
                 "window has 3 entries, images of x [2, 8, 6, 4] have 2");
    EXPECT_ERROR(schedules::max_pool("y", x, {.window = {3}, .padding = {{0, 3}}}),
                 "along dimension 1 of x [2, 8, 6, 4] a window of 3 elements fits into the padding of 0 and 3");
    EXPECT_ERROR(schedules::max_pool("y", x, {.window = {7}}),
                 "7 taps with dilation 1 span 7 elements, dimension 2 of x");
    EXPECT_ERROR(schedules::adaptive_average_pool("y", flat, {1}), "adaptive_average_pool: x is f32 [2, 8]");
    EXPECT_ERROR(schedules::adaptive_average_pool("y", x, {2, 0}),
                 "0 results of dimension 2 of x [2, 8, 6, 4]; give one at least");
    EXPECT_ERROR(schedules::upsample_nearest("y", flat, {2}), "upsample_nearest: x is f32 [2, 8]; give floats");
    EXPECT_ERROR(schedules::upsample_linear("y", x, {2, 0}),
                 "upsample_linear: factor 0 along dimension 2 of x [2, 8, 6, 4]");
}

class PoolingLayers : public OnEachDevice {
protected:
    void SetUp() override {
        OnEachDevice::SetUp();
        if (device_) backend_ = std::make_shared<nn::Backend>(device_);
    }
    std::shared_ptr<nn::Backend> backend_;
};
TW_ON_EACH_DEVICE(PoolingLayers);

/// sum(y * c)
nn::Tensor weighted(const nn::Tensor& y, const nn::Tensor& c) {
    static const nn::Operator op("weighted", [](const std::vector<Tensor>& in) {
        std::vector<Axis> axes;
        for (const Expr& extent : in[0].shape()) axes.push_back(reduce_axis("r", extent));
        const std::vector<Operand> at(axes.begin(), axes.end());
        return compute("loss", {}, [&] { return sum(in[0].read(at) * in[1].read(at), axes); });
    });
    return op({y, c});
}

struct Layer {
    const char* name;
    std::function<nn::Tensor(const nn::Tensor&)> call;
    std::function<Tensor(const Tensor&)> declare;
};

/// Through the tape, with kernels, against the declaration's values and gradients in float64.
TEST_P(PoolingLayers, KernelsAgreeWithTheDeclaration) {
    const PoolingOptions overlapping{.window = {3, 2}, .stride = {2, 1}, .padding = {{1, 0}, {0, 1}}},
        halves{.window = {2}}, rounded_up{.window = {3, 2}, .stride = {2, 2}, .ceil_mode = true};
    const std::vector<Layer> layers = {
        {"max, rounded up", [&](auto& x) { return nn::max_pool(x, rounded_up); },
         [&](auto& x) { return schedules::max_pool("y", x, rounded_up); }},
        {"average, rounded up", [&](auto& x) { return nn::average_pool(x, rounded_up); },
         [&](auto& x) { return schedules::average_pool("y", x, rounded_up); }},
        {"max", [&](auto& x) { return nn::max_pool(x, overlapping); },
         [&](auto& x) { return schedules::max_pool("y", x, overlapping); }},
        {"halves", [&](auto& x) { return nn::max_pool(x, halves); },
         [&](auto& x) { return schedules::max_pool("y", x, halves); }},
        {"average", [&](auto& x) { return nn::average_pool(x, overlapping, CountPadding::No); },
         [&](auto& x) { return schedules::average_pool("y", x, overlapping, CountPadding::No); }},
        {"adaptive",
         [&](auto& x) {
             return nn::adaptive_average_pool(x, {2, 4});
         },
         [&](auto& x) {
             return schedules::adaptive_average_pool("y", x, {2, 4});
         }},
        {"nearest",
         [&](auto& x) {
             return nn::upsample_nearest(x, {2, 3});
         },
         [&](auto& x) {
             return schedules::upsample_nearest("y", x, {2, 3});
         }},
        {"linear",
         [&](auto& x) {
             return nn::upsample_linear(x, {2, 3});
         },
         [&](auto& x) {
             return schedules::upsample_linear("y", x, {2, 3});
         }}};
    for (const Layer& layer : layers) {
        SCOPED_TRACE(layer.name);
        const Tensor x = input("x", f32, {2, 6, 5, 3}), y = layer.declare(x);
        const Tensor dy = input("dy", f32, shape_of_extents(extents_of(y)));
        const Bindings bindings = random_inputs({x, dy}, 8);
        const nn::Tensor leaf = nn::Tensor(backend_, bindings.inputs.at("x"), "x").set_requires_grad();
        const nn::Tensor result = layer.call(leaf);
        nn::backward(weighted(result, nn::Tensor(backend_, bindings.inputs.at("dy"))));
        const auto exact = interpret_plain({y, gradients(y, dy, {x})[0]}, bindings, Precision::Float64);
        expect_elements(result.to_host(), 1e-6, [&](const auto& at) { return real(exact[0], at); });
        expect_elements(leaf.grad().to_host(), 1e-6, [&](const auto& at) { return real(exact[1], at); });
    }
}

TEST_P(PoolingLayers, PlacesRequireNoGradient) {
    const Case c{{{4, 4}, {2, 2}, {2, 2}, {1, 1}, {0, 0}}, 1, 2};
    HostArray host = host_array(f32, c.shape());
    fill_uniform(host, -1, 1, 1);
    const nn::Tensor x = nn::Tensor(backend_, host, "x").set_requires_grad();
    const auto [values, places] = nn::max_pool_with_places(x, {.window = {2}});
    EXPECT_TRUE(values.requires_grad());
    EXPECT_FALSE(places.requires_grad());
    EXPECT_EQ(places.type(), i64);
    expect_elements(places.to_host(), 0, [&](const auto& at) { return double(expected_largest(c, host, at).place); });
}

/// Those of kernels, too.
TEST_P(PoolingLayers, NaNWins) {
    for (bool ceil_mode : {false, true}) {
        const Case c{{{6, 7}, {3, 2}, {2, 2}, {1, 1}, {1, 0}}, 2, 3, ceil_mode};
        HostArray host = host_array(f32, c.shape());
        fill_uniform(host, -1, 1, 3);
        for (const std::vector<int64_t>& at : {indices(0, {0, 0}, 0), indices(1, {5, 6}, 2), indices(0, {3, 4}, 1)})
            host.set(at, make_value(f32, std::nan("")));
        const auto [values, places] = nn::max_pool_with_places(nn::Tensor(backend_, host, "x"), c.options());
        expect_elements(values.to_host(), 0, [&](const auto& at) { return expected_largest(c, host, at).value; });
        expect_elements(places.to_host(), 0,
                        [&](const auto& at) { return double(expected_largest(c, host, at).place); });
    }
}

/// The largest of narrow numbers is one of them; means are rounded once.
TEST_P(PoolingLayers, NarrowTypes) {
    for (Type type : {bf16, f16}) {
        const Case c{{{5, 4}, {3, 2}, {1, 2}, {1, 1}, {1, 0}}, 2, 3};
        HostArray host = host_array(type, c.shape());
        fill_uniform(host, -1, 1, 2);
        const nn::Tensor x(backend_, host, "x");
        expect_elements(nn::max_pool(x, c.options()).to_host(), 0,
                        [&](const auto& at) { return expected_largest(c, host, at).value; });
        expect_elements(nn::average_pool(x, c.options()).to_host(), unit_roundoff(type),
                        [&](const auto& at) { return expected_mean(c, host, at, CountPadding::Yes); });
        expect_elements(nn::upsample_linear(x, {2}).to_host(), unit_roundoff(type), [&](const auto& at) {
            return expected_linear(host, {2, 2}, at, 1);
        });
    }
}

}  // namespace
}  // namespace tw

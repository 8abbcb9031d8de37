// Infinities and NaN in images, filters and gradients, at edges too: convolutions on tensor cores against what the
// plain declarations say. They differ where docs/language.md says so, and nowhere else.
#include <gtest/gtest.h>

#include "dsl/differentiate.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "schedules/halo_convolution.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/schedules/plain_convolution.h"

namespace tw::schedules {
namespace {

constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

bool is_finite(const HostArray& array) {
    std::vector<int64_t> at(array.shape.size(), 0);
    do
        if (!std::isfinite(array.at(at).real)) return false;
    while (advance(at, array.shape));
    return true;
}

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b; }

/// Whether the pixel's sum has a term beside the image of results, with a factor that is infinite or NaN.
bool meets_infinite_filter(const ConvolutionShape& s, const HostArray& w, const std::vector<int64_t>& pixel) {
    auto beside = [&](int64_t place, int64_t tap, int64_t results) {
        const int64_t from = place + s.padding - tap * s.dilation;
        return from % s.stride != 0 ? -1 : from < 0 || from / s.stride >= results ? 1 : 0;  // -1: no term
    };
    const int64_t channels = s.channels / s.groups, filters = s.filters / s.groups;
    for (int64_t r = 0; r < s.kernel_h; ++r)
        for (int64_t t = 0; t < s.kernel_w; ++t) {
            const int64_t h = beside(pixel[1], r, s.rows()), q = beside(pixel[2], t, s.columns());
            for (int64_t f = 0; f < filters && h >= 0 && q >= 0 && h + q > 0; ++f)
                if (!std::isfinite(w.at(in_layout<int64_t>(
                                            s.layout, {pixel[3] / channels * filters + f, r, t, pixel[3] % channels}))
                                       .real))
                    return true;
        }
    return false;
}

class ConvolutionInfinities : public RandomCases {
protected:
    ConvolutionInfinities() : RandomCases(23) {}

    ConvolutionShape random_shape(int64_t stride) {
        ConvolutionShape s{.images = between(1, 2),
                           .height = between(4, 9),
                           .width = between(4, 9),
                           .channels = 8 * between(2, 5),
                           .filters = 8 * between(2, 5),
                           .kernel_h = between(2, 3),
                           .kernel_w = between(2, 3),
                           .stride = stride,
                           .padding = between(0, 2),
                           .type = chance() ? bf16 : f16};
        return s;
    }

    /// Infinities of either sign and NaN in a few places, every other one of them in a corner.
    void strew(HostArray& array) {
        const double numbers[] = {INFINITY, -INFINITY, NAN};
        for (int n = between(1, 3); n > 0; --n) {
            std::vector<int64_t> at;
            const bool corner = chance();
            for (int64_t extent : array.shape) {
                const int last = static_cast<int>(extent) - 1;
                at.push_back(corner ? between(0, 1) * last : between(0, last));
            }
            array.set(at, make_value(array.type, numbers[between(0, 2)]));
        }
    }

    /// `may_differ` says where the kernel may have NaN instead. Returns where it has.
    using MayDiffer = std::function<bool(const Bindings&, const std::vector<int64_t>&)>;
    int64_t expect_declared(const Schedule& s, const Tensor& result, const MayDiffer& may_differ) {
        Executable executable(build(s), device_);
        int64_t differ = 0, infinite = 0;
        for (int data = 0; data < 6; ++data) {
            Bindings bindings = whole_numbers({result}, static_cast<unsigned>(between(0, 1000)));
            strew(std::next(bindings.inputs.begin(), data % 2)->second);
            const HostArray got = run_on(executable, bindings)[0], expected = interpret_plain({result}, bindings)[0];
            std::vector<int64_t> at(got.shape.size(), 0);
            do {
                const double value = got.at(at).real, wanted = expected.at(at).real;
                infinite += !std::isfinite(wanted);
                if (same(value, wanted)) continue;
                ++differ;
                EXPECT_TRUE(std::isnan(value) && may_differ && may_differ(bindings, at))
                    << indices_text(at) << " is " << value << ", declared " << wanted << "\n"
                    << s.trace_as_cpp();
            } while (!HasFailure() && advance(at, got.shape));
        }
        EXPECT_GT(infinite, 0);
        return differ;
    }

    /// By that of the filters alone.
    static MayDiffer by_filters(const ConvolutionShape& shape, ConvolutionPass pass) {
        if (pass != ConvolutionPass::DataGradient) return {};
        return [shape](const Bindings& bindings, const std::vector<int64_t>& at) {
            return meets_infinite_filter(shape, bindings.inputs.at("w"), with_channels_last(shape.layout, at));
        };
    }
};
TW_ON_EACH_DEVICE(ConvolutionInfinities);

/// As::Matrix of an adjoint that is zero beside its image multiplies that zero, which an infinite factor shows; that is
/// all.
TEST_P(ConvolutionInfinities, ReachWhatTheDeclarationSays) {
    int64_t differ = 0;
    for (const auto& [stride, layout] : {std::pair(1, Layout::ChannelsLast), std::pair(2, Layout::ChannelsLast),
                                         std::pair(1, Layout::ChannelsFirst), std::pair(2, Layout::ChannelsFirst)}) {
        ConvolutionShape shape = random_shape(stride);
        shape.layout = layout;
        for (ConvolutionPass pass : passes)
            differ +=
                expect_declared(convolution_schedule(declare_convolution(shape, pass), shape, {}, device_target()),
                                plain_convolution(shape, pass), by_filters(shape, pass));
    }
    EXPECT_GT(differ, 0);  // else the page says what is no more
}

TEST_P(ConvolutionInfinities, InTilesWithTheirHalo) {
    ConvolutionShape shape = random_shape(1);
    shape.padding = 1;
    const HaloTiles tiles{.places = 32, .leaving = 16, .stages = 2, .ping_pong = 1};
    for (ConvolutionPass pass : {ConvolutionPass::Forward, ConvolutionPass::DataGradient}) {
        ASSERT_TRUE(takes_halo(shape, pass, tiles, device_target()));
        expect_declared(halo_schedule(declare_halo_convolution(shape, pass, tiles.places), tiles, device_target()),
                        plain_convolution(shape, pass), by_filters(shape, pass));
    }
}

/// Groups of few channels are multiplied together, with zeros for each other's.
TEST_P(ConvolutionInfinities, ReachTheGroupsThatAreJoined) {
    const ConvolutionShape shape{.images = 1,
                                 .height = 5,
                                 .width = 6,
                                 .channels = 64,
                                 .filters = 64,
                                 .kernel_h = 2,
                                 .kernel_w = 3,
                                 .padding = 1,
                                 .groups = 8};
    const ConvolutionPass pass = ConvolutionPass::Forward;
    const Convolution joined = declare_convolution(shape, pass);
    ASSERT_EQ(product_of(joined).form.group, 0);
    // Infinities of filters stay in their group: beside them stand other groups' zeros.
    const MayDiffer of_other_groups = [](const Bindings& bindings, const std::vector<int64_t>&) {
        return is_finite(bindings.inputs.at("w"));
    };
    const int64_t differ = expect_declared(convolution_schedule(joined, shape, {}, device_target()),
                                           plain_convolution(shape, pass), of_other_groups);
    EXPECT_GT(differ, 0);
}

/// As layers are scheduled, and depthwise; groups of few channels are joined there, too.
TEST_P(ConvolutionInfinities, InGroupsAndDepthwiseStayThere) {
    ConvolutionShape shape = random_shape(1);
    for (int64_t groups : {2, 32}) {
        shape.channels = shape.filters = groups == 2 ? 128 : 32;
        shape.groups = groups;
        const Tensor y = plain_convolution(shape, ConvolutionPass::Forward);
        expect_declared(choose_schedule({y}, device_target()), y, {});
    }
}

}  // namespace
}  // namespace tw::schedules

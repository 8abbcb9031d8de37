// Convolutions whose channels come first: as they lie, or by copies, in which users' own sums have them last, too.
#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "schedules/channels_last.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/schedules/plain_convolution.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

class ChannelsFirst : public RandomCases {
protected:
    ChannelsFirst() : RandomCases(47) {}

    /// Few multiprocessors: threads are slow, so that copies pay for small images.
    Target some() const {
        Target target = device_target();
        target.multiprocessors = 1;
        return target;
    }
    /// Bit for bit what the outputs say, of whole numbers; returns what explain() says.
    std::string expect_right(const std::vector<Tensor>& outputs) {
        const Schedule s = choose_schedule(outputs, some());
        SCOPED_TRACE(s.trace_as_cpp());
        const Bindings bindings = whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000)));
        const Program program = build(s);
        Executable executable(program, device_);
        const std::vector<HostArray> got = run_on(executable, bindings), expected = interpret_plain(outputs, bindings);
        for (size_t k = 0; k < outputs.size(); ++k)
            EXPECT_EQ(difference(outputs[k].name(), got[k], expected[k], bitwise), std::nullopt);
        return program.explain();
    }
};
TW_ON_EACH_DEVICE(ChannelsFirst);

HostArray permuted(const HostArray& array, const std::function<std::vector<int64_t>(std::vector<int64_t>)>& order) {
    HostArray result = host_array(array.type, order(array.shape));
    std::vector<int64_t> at(array.shape.size(), 0);
    do result.set(order(at), array.at(at));
    while (advance(at, array.shape));
    return result;
}

/// Of the same images with channels last, whatever the pass: the same numbers in other places.
TEST(ChannelsFirstDeclarations, AreThoseWithChannelsLastOfPermutedData) {
    ConvolutionShape s{.images = 2,
                       .height = 7,
                       .width = 5,
                       .channels = 6,
                       .filters = 4,
                       .kernel_h = 3,
                       .kernel_w = 2,
                       .stride = 2,
                       .padding = 1,
                       .groups = 2};
    for (ConvolutionPass pass : passes) {
        s.layout = Layout::ChannelsLast;
        const Tensor last = plain_convolution(s, pass);
        s.layout = Layout::ChannelsFirst;
        const Tensor first = plain_convolution(s, pass);
        Bindings bindings = random_bindings({last}, 3), moved;
        for (const auto& [name, array] : bindings.inputs)
            moved.inputs[name] =
                permuted(array, [](const auto& at) { return in_layout<int64_t>(Layout::ChannelsFirst, at); });
        const HostArray expected = permuted(interpret_plain({last}, bindings)[0], [](const auto& at) {
            return in_layout<int64_t>(Layout::ChannelsFirst, at);
        });
        // Sums run over channels behind taps in both, in the same order.
        EXPECT_EQ(difference(first.name(), interpret_plain({first}, moved)[0], expected, bitwise), std::nullopt);
    }
}

TEST(ChannelsFirstDeclarations, Refusals) {
    const Tensor x = input("x", f32, {2, 4, 8, 6}), w = input("w", f32, {6, 4, 3, 3}), none;
    const Layout layout = Layout::ChannelsFirst;
    EXPECT_ERROR(convolve("y", input("x", f32, {2, 4}), w, none, {.layout = layout}),
                 "give x [images, channels, extents...] and a weight [filters, channels of a group, taps...]");
    EXPECT_ERROR(convolve("y", input("x", f32, {2, 8, 6, 4}), w, none, {.layout = layout}),
                 "x is [2, 8, 6, 4], the weight [6, 4, 3, 3], in 1 groups; the second extent of the weight times the "
                 "groups must be the channels of x, its second extent");
    EXPECT_ERROR(convolve("y", x, w, none, {.dilation = {3}, .layout = layout}),
                 "3 taps with dilation 3 span 7 elements, dimension 3 of x [2, 4, 8, 6] has 6");
    EXPECT_ERROR(convolve("y", x, w, none, {.padding = {{1, 8}, 1}, .mode = PaddingMode::Reflect, .layout = layout}),
                 "a reflecting border of 1 and 8 elements has no place at dimension 2 of 'x' [2, 4, 8, 6]");
    EXPECT_ERROR(convolve_transposed("y", x, w, none, {.layout = layout}),
                 "x is [2, 4, 8, 6], the weight [6, 4, 3, 3]; the second extent of x must be the first of the weight");
    EXPECT_ERROR(convolve_transposed("y", input("x", f32, {2, 6, 8, 6}), w, none, {.padding = {5}, .layout = layout}),
                 "dimension 2 of x [2, 6, 8, 6] would become 0");
    EXPECT_ERROR(schedules::window_dimensions("windows", x, {3}, {.layout = layout}),
                 "for windows of 1 dimensions; give [images, channels, extents...] with 1 to 3 extents");
}

/// A sum that a user wrote, with axes in his order, a bias and an activation.
TEST_P(ChannelsFirst, OfOnesOwnAreOnTensorCores) {
    const Tensor u = input("u", bf16, {2, 16, 9, 8}), k = input("k", bf16, {24, 16, 3, 3}),
                 shift = input("shift", f32, {24});
    Axis e = reduce_axis("e", 16), a = reduce_axis("a", 3), b = reduce_axis("b", 3);
    const Tensor z = compute("z", {2, 24, 9, 8}, [&](Expr n, Expr o, Expr i, Expr j) {
        const Expr total =
            sum(cast(f32, k(o, e, a, b)) * cast(f32, padded(u, 0)(n, e, i + a - 1, j + b - 1)), {e, a, b});
        return cast(bf16, relu(total + shift(o)));
    });
    const std::string explained = expect_right({z});
    EXPECT_THAT(explained,
                HasSubstr("'z' sums over windows of channels, dimension 1, which its kernel has last: copied "
                          "so are 'k', 'u'"));
    EXPECT_THAT(explained, HasSubstr("'z' leaves its kernel with channels first"));
    EXPECT_THAT(explained, Not(HasSubstr("not computed by tensor cores")));
}

/// Signals and volumes; filters whose channels lie last, and others: what is moved is what is to be.
TEST_P(ChannelsFirst, OfSignalsAndMixedLayoutsMoveWhatTheyMust) {
    const Tensor x = input("x", bf16, {8, 16, 60}), w = input("w", bf16, {32, 5, 16});
    Axis c = reduce_axis("c", 16), r = reduce_axis("r", 5);
    const Tensor y = compute("y", {8, 32, 56}, [&](Expr n, Expr f, Expr t) {
        return cast(bf16, sum(cast(f32, x(n, c, t + r)) * cast(f32, w(f, r, c)), {r, c}));
    });
    EXPECT_THAT(expect_right({y}), HasSubstr("which its kernel has last: copied so are 'x', at"));
    const Tensor volume = input("volume", f16, {4, 8, 4, 5, 6}), filters = input("filters", f16, {32, 8, 2, 2, 2});
    EXPECT_THAT(expect_right({convolve("y", volume, filters, {}, {.padding = {1}, .layout = Layout::ChannelsFirst})}),
                HasSubstr("copied so are 'volume', 'filters'"));
}

/// Between layers that are computed together there are no copies but those at the ends.
TEST_P(ChannelsFirst, InnerLayersArePassedOnAsTheyAre) {
    const Layout layout = Layout::ChannelsFirst;
    const Tensor x = input("x", bf16, {2, 16, 10, 8}), w = input("w", bf16, {32, 16, 3, 3}),
                 v = input("v", bf16, {16, 32, 3, 3});
    const Tensor first = convolve("first", x, w, {}, {.padding = {1}, .layout = layout});
    const Tensor hidden = compute("hidden", {2, 32, 10, 8}, [&](Expr n, Expr f, Expr i, Expr j) {
        return cast(bf16, min(relu(cast(f32, first(n, f, i, j))), 2.0));
    });
    const Tensor second = convolve("second", hidden, v, {}, {.padding = {1}, .layout = layout});
    expect_right({second});
    const Program program = build(choose_schedule({second}, some()));
    EXPECT_EQ(program.kernels().size(), 6u);  // copies of x, w and v, two products, and what hidden is
    for (const auto& kernel : program.kernels()) {
        if (kernel.name == "hidden_channels_last_kernel") {
            EXPECT_THAT(kernel.cuda, Not(HasSubstr("Shared& shared")));
        }
    }
}

/// Filters of a single tap over pixels as they lie, of all dimensions, by rows or columns of filters.
TEST_P(ChannelsFirst, SingleTapsTakePixelsAsTheyLie) {
    for (int round = 0; round < 6; ++round) {
        const Layout layout = Layout::ChannelsFirst;
        const int channels = 8 * between(2, 9), filters = 8 * between(2, 9), images = between(1, 3);
        const std::vector<Shape> extents{{8 * between(3, 9)}, {4, 2 * between(5, 9)}, {2, 3, 4 * between(2, 4)}};
        Shape of_x{images, channels}, of_w{filters, channels};
        for (const Extent& extent : extents[static_cast<size_t>(round % 3)]) of_x.push_back(extent), of_w.push_back(1);
        const Tensor x = input("x", bf16, of_x), w = input("w", bf16, of_w), shift = input("shift", f32, {filters});
        const Tensor y = convolve("y", x, w, chance() ? shift : Tensor(), {.layout = layout});
        EXPECT_THAT(expect_right({y}), HasSubstr("'y' sums over channels of 'x' as they lie"));
        const Tensor dy = input("dy", bf16, {y.shape().begin(), y.shape().end()});
        EXPECT_THAT(expect_right({gradients(y, dy, {x})[0]}), HasSubstr("sums over channels of 'dy' as they lie"));
        EXPECT_THAT(expect_right({gradients(y, dy, {w})[0]}), HasSubstr("sums over pixels of 'x' as they lie"));
    }
}

/// Two layers over one input, which read pixels as they lie, and one of another's result.
TEST_P(ChannelsFirst, SeveralLayersShareWhatLies) {
    const Layout layout = Layout::ChannelsFirst;
    const Tensor x = input("x", bf16, {2, 32, 4, 16}), w = input("w", bf16, {48, 32, 1, 1}),
                 v = input("v", bf16, {16, 32, 1, 1}), u = input("u", bf16, {32, 48, 1, 1});
    const Tensor y = convolve("y", x, w, {}, {.layout = layout}), z = convolve("z", x, v, {}, {.layout = layout});
    EXPECT_THAT(expect_right({y, z}),
                AllOf(HasSubstr("'y' sums over channels of 'x' as they lie"),
                      HasSubstr("'z' sums over channels of 'x' as they lie"), Not(HasSubstr("are joined already"))));
    expect_right({y, convolve("t", y, u, {}, {.layout = layout})});
}

/// Whole units of channels change nothing, whatever lies around the images: values and gradients.
TEST(WholeUnitsOfChannels, ChangeNothing) {
    for (const Layout layout : {Layout::ChannelsLast, Layout::ChannelsFirst})
        for (const PaddingMode mode :
             {PaddingMode::Zeros, PaddingMode::Reflect, PaddingMode::Replicate, PaddingMode::Circular})
            for (const int channels : {1, 3, 8, 12})
                for (const bool is_flat : {false, true}) {
                    const bool first = layout == Layout::ChannelsFirst;
                    Shape of_x{2}, of_w{4};
                    if (first) of_x.push_back(channels), of_w.push_back(channels);
                    for (int d = 0; d < (is_flat ? 2 : 1); ++d) of_x.push_back(5 + d), of_w.push_back(3);
                    if (!first) of_x.push_back(channels), of_w.push_back(channels);
                    const Tensor x = input("x", f32, of_x), w = input("w", f32, of_w);
                    std::vector<std::vector<HostArray>> results;
                    for (const int unit : {1, 8}) {
                        const Tensor y = convolve("y", x, w, {},
                                                  {.padding = {{2, 1}}, .mode = mode, .unit = unit, .layout = layout});
                        const Tensor dy = input("dy", f32, {y.shape().begin(), y.shape().end()});
                        std::vector<Tensor> all = gradients(y, dy, {x, w});
                        all.insert(all.begin(), y);
                        results.push_back(interpret_plain(all, whole_numbers(all, 7)));
                    }
                    for (size_t k = 0; k < 3; ++k)
                        EXPECT_EQ(difference("unit", results[1][k], results[0][k], equal_values), std::nullopt)
                            << static_cast<int>(mode) << ", " << channels << " channels, result " << k;
                }
}

/// Of a part of the channels: sums of these alone, however long rows of images and filters are.
TEST_P(ChannelsFirst, SumsOfSomeChannelsAreOfThose) {
    for (const int rows_of_filters : {64, 32})
        for (const bool transposed : {false, true}) {
            const Tensor x = input("x", bf16, {2, 64, 16, 16});
            const Tensor w = transposed ? input("w", bf16, {rows_of_filters, 32, 1, 1})
                                        : input("w", bf16, {32, rows_of_filters, 1, 1});
            const Axis c = reduce_axis("c", 32);
            const Tensor y = compute("y", {2, 32, 16, 16}, [&](Expr n, Expr f, Expr p, Expr q) {
                const Expr weight = transposed ? w(c, f, 0, 0) : w(f, c, 0, 0);
                return sum(cast(f32, weight) * cast(f32, x(n, c, p, q)), c);
            });
            expect_right({y});
        }
    // The diagonals of all images.
    const Tensor x = input("x", bf16, {2, 16, 16, 16}), dy = input("dy", bf16, {2, 16, 16, 16});
    const Axis n = reduce_axis("n", 2), p = reduce_axis("p", 16), q = reduce_axis("q", 16);
    expect_right({compute("diagonal", {16, 16, 1, 1}, [&](Expr f, Expr c, Expr, Expr) {
        return sum(cast(f32, dy(n, f, p, p)) * cast(f32, x(n, c, p, p)), {n, p, q});
    })});
}

/// What has no whole pieces of pixels, strides or zeros around it does not lie so.
TEST(ChannelsFirstChoice, SaysWhatIsMovedAndWhatIsNot) {
    const Target h200 = target("sm_90a");
    auto explained = [&](ConvolutionShape s) {
        s.layout = Layout::ChannelsFirst;
        return build(choose_schedule({plain_convolution(s, ConvolutionPass::Forward)}, h200)).explain();
    };
    ConvolutionShape s{
        .images = 64, .height = 28, .width = 28, .channels = 64, .filters = 64, .kernel_h = 1, .kernel_w = 1};
    EXPECT_THAT(explained(s), HasSubstr("as they lie, channels first, without copies"));
    s.stride = 2;
    EXPECT_THAT(explained(s), HasSubstr("copied so are 'x', 'w'"));
    s.stride = 1, s.height = s.width = 15;  // rows of 225 pixels are no whole pieces
    EXPECT_THAT(explained(s), HasSubstr("copied so are 'x', 'w'"));
    EXPECT_THAT(explained(s), HasSubstr("'y' is a copy, with channels first, of what its kernel makes"));
    s.kernel_h = s.kernel_w = 3, s.padding = 1, s.height = s.width = 56;
    EXPECT_THAT(explained(s), HasSubstr("'y' leaves its kernel with channels first"));
    s.images = 1, s.height = s.width = 7, s.kernel_h = s.kernel_w = 1, s.padding = 0;
    EXPECT_THAT(explained(s), HasSubstr("would take longer than tensor cores save"));
}

/// Copies pass through shared memory, so that threads move 16 bytes on both sides.
/// Also where tiles of 64 pixels cut rows of images, and of 56 rows of 56 are whole.
TEST(ChannelsFirstChoice, CopiesMoveWholePieces) {
    for (const int64_t side : {28, 56}) {
        const ConvolutionShape s{.images = 64,
                                 .height = side,
                                 .width = side,
                                 .channels = 64,
                                 .filters = 64,
                                 .kernel_h = 3,
                                 .kernel_w = 3,
                                 .padding = 1,
                                 .layout = Layout::ChannelsFirst};
        int copies = 0;
        for (ConvolutionPass pass : passes)
            for (const auto& kernel :
                 build(choose_schedule({plain_convolution(s, pass)}, target("sm_90a"))).kernels()) {
                if (kernel.name != "x_channels_last_kernel" && kernel.name != "dy_channels_last_kernel") continue;
                ++copies;
                EXPECT_THAT(kernel.cuda, HasSubstr("tw::load<8>("));
                EXPECT_THAT(kernel.cuda, HasSubstr("tw::store<8>("));
                EXPECT_THAT(kernel.cuda, HasSubstr("[64][1][66]")) << "of one tile alone";
            }
        EXPECT_EQ(copies, 4);
    }
}

/// Where there are no such units everything is as it was.
TEST(ChannelsFirstChoice, MovesNothingElsewhere) {
    const ConvolutionShape s{.images = 64,
                             .height = 28,
                             .width = 28,
                             .channels = 64,
                             .filters = 64,
                             .kernel_h = 3,
                             .kernel_w = 3,
                             .layout = Layout::ChannelsFirst};
    const Tensor y = plain_convolution(s, ConvolutionPass::Forward);
    EXPECT_TRUE(move_channels({y}, {}, target("sm_80")).given.empty());
    EXPECT_TRUE(move_channels({y}, {.given = {y}}, target("sm_90a")).given.empty());
    EXPECT_EQ(move_channels({y}, {}, target("sm_90a")).given.size(), 1u);
}

}  // namespace
}  // namespace tw::schedules

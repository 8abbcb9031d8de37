// What choose_schedule makes of convolutions of images: the kernels that declare_convolution has by name.
#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/executable.h"
#include "schedules/channels_last.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "schedules/find_convolution.h"
#include "schedules/halo_convolution.h"
#include "schedules/tuned_records.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/schedules/plain_convolution.h"
#include "tests/schedules/without_names.h"

namespace tw::schedules {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

std::string text_of(const ConvolutionShape& s, ConvolutionPass pass) {
    return fmt::format(
        "pass {}: {} images of {} x {} x {}, {} filters of {} x {}, stride {}, padding {}, dilation {}, "
        "{} groups, channels {}",
        static_cast<int>(pass), s.images, s.height, s.width, s.channels, s.filters, s.kernel_h, s.kernel_w, s.stride,
        s.padding, s.dilation, s.groups, s.layout == Layout::ChannelsFirst ? "first" : "last");
}

class ChooseConvolutions : public RandomCases {
protected:
    ChooseConvolutions() : RandomCases(23) {}

    int64_t random_channels() { return chance() ? 8 * between(1, 10) : between(1, 40); }
    ConvolutionShape random_shape() {
        ConvolutionShape s{.images = between(1, 3),
                           .height = between(1, 12),
                           .width = between(1, 12),
                           .channels = random_channels(),
                           .filters = random_channels(),
                           .kernel_h = between(1, 5),
                           .kernel_w = between(1, 5),
                           .stride = chance() ? 1 : between(2, 3),
                           .padding = between(0, 3),
                           .dilation = between(0, 2) ? 1 : 2,
                           .type = chance() ? bf16 : f16,
                           .layout = chance() ? Layout::ChannelsFirst : Layout::ChannelsLast};
        if (between(0, 2) == 0) s.groups = between(2, 6), s.channels *= s.groups, s.filters *= s.groups;
        s.height = std::max(s.height, (s.kernel_h - 1) * s.dilation + 1 - 2 * s.padding);
        s.width = std::max(s.width, (s.kernel_w - 1) * s.dilation + 1 - 2 * s.padding);
        return s;
    }
};
TW_ON_EACH_DEVICE(ChooseConvolutions);

/// Of layers at random, forward and both gradients: few, odd and many channels, groups, strides, taps that read no
/// image.
TEST(ChooseConvolution, TakesTheKernelsThatHaveNames) {
    std::mt19937 random(7);
    auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
    constexpr int64_t channels[] = {3, 16, 24, 36, 64, 72, 96, 128, 256};
    const Target h200 = target("sm_90a");
    for (int round = 0; round < 15; ++round) {
        ConvolutionShape s{.images = int64_t{1} << between(0, 6),
                           .height = between(1, 60),
                           .width = between(1, 60),
                           .channels = channels[between(0, 8)],
                           .filters = channels[between(0, 8)],
                           .kernel_h = 2 * between(0, 2) + 1,
                           .kernel_w = 2 * between(0, 2) + 1,
                           .stride = between(0, 2) ? 1 : 2,
                           .padding = between(0, 2),
                           .dilation = between(0, 4) ? 1 : 2};
        if (between(0, 3) == 0)
            s.groups = int64_t{1} << between(1, 3), s.channels = s.filters = 4 * s.groups * between(1, 8);
        if (!s.has_pixels()) continue;
        for (ConvolutionPass pass : passes) {
            SCOPED_TRACE(text_of(s, pass));
            EXPECT_EQ(without_names(build(choose_schedule({plain_convolution(s, pass)}, h200)).cuda()),
                      without_names(build(convolution_schedule({s, pass, {}, {}}, h200)).cuda()));
        }
    }
}

/// A user's own sum over windows, in axes of his order: with its halo, and in a layer with a bias.
TEST(ChooseConvolution, OfOnesOwnComesWithItsHalo) {
    const Tensor u = input("u", bf16, {264, 56, 56, 64}), k = input("k", bf16, {64, 3, 3, 64}),
                 shift = input("shift", f32, {64});
    Axis e = reduce_axis("e", 64), a = reduce_axis("a", 3), b = reduce_axis("b", 3);
    const Tensor z = compute("z", {264, 56, 56, 64}, [&](Expr n, Expr i, Expr j, Expr o) {
        const Expr total =
            sum(cast(f32, k(o, a, b, e)) * cast(f32, padded(u, 0)(n, i + a - 1, j + b - 1, e)), {e, a, b});
        return cast(bf16, relu(total + shift(o)));
    });
    const Schedule s = choose_schedule({z}, target("sm_90a"));
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("z_raster"));
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr(", {256, 32}, Tail::Mask, {\"tile\""));
    EXPECT_EQ(s.outputs()[0].name(), "z");
    EXPECT_THAT(build(s).explain(), HasSubstr("'z' is declared anew"));
}

/// However many strides, dilations and paddings shapes leave: where there are as many images as filters, a gradient
/// could be another pass of other operands, with kernels as large as images.
TEST_P(ChooseConvolutions, AreFoundAmongFewCandidates) {
    std::vector<ConvolutionShape> shapes;
    for (const char* name :
         {"64x224x224x3_64_7x7_stride2_pad3", "256x224x224x3_64_7x7_stride2_pad3", "256x14x14x256_256_3x3_pad1",
          "256x56x56x64_256_1x1", "64x56x56x64_64_7x7_stride2_pad3", "64x225x225x64_64_11x11_stride2_pad5",
          "64x64x64x7_64_5x5_pad2", "64x32x32x120_120_3x3_stride5_pad1", "512x1x1x2048_1000_3x3_pad1",
          "64x28x28x256_256_3x3_pad1_groups16", "32x33x33x136_72_3x3_stride2_pad2_dilation2"})
        shapes.push_back(parse_convolution(std::string("convolution_bf16_") + name)->shape);
    for (int round = 0; round < 30; ++round) shapes.push_back(random_shape());
    for (const ConvolutionShape& shape : shapes)
        for (ConvolutionPass pass : passes) {
            const Tensor given = plain_convolution(shape, pass);
            size_t candidates = 0;
            for (const auto& operation : operations_of({given}))
                if (!operation->is_input()) candidates += convolution_candidates(Tensor(operation, 0), {given}).size();
            const bool has_little =  // windows or pixels, which leaves numbers open
                std::max(shape.rows(), shape.columns()) < 3 || std::max(shape.height, shape.width) < 4;
            EXPECT_LE(candidates, has_little ? 150u : 3u) << text_of(shape, pass);
        }
}

/// relu(convolution + shift), with 64 channels and filters: its halo comes with it, by the model.
Tensor layer_with_bias() {
    const Tensor u = input("u", bf16, {264, 56, 56, 64}), k = input("k", bf16, {64, 3, 3, 64}),
                 shift = input("shift", f32, {64});
    Axis e = reduce_axis("e", 64), a = reduce_axis("a", 3), b = reduce_axis("b", 3);
    return compute("z", {264, 56, 56, 64}, [&](Expr n, Expr i, Expr j, Expr o) {
        const Expr total =
            sum(cast(f32, padded(u, 0)(n, i + a - 1, j + b - 1, e)) * cast(f32, k(o, a, b, e)), {a, b, e});
        return cast(bf16, relu(total + shift(o)));
    });
}

/// What was tried, why it was left, and what is taken instead.
TEST(ChooseConvolution, SaysWhyItLeftAHalo) {
    Target some = target("sm_90a");
    const Tensor z = layer_with_bias();
    const std::string whole = choose_schedule({z}, some).explain();
    EXPECT_THAT(whole, HasSubstr("'z_sums': tiling halo256b32s2t2, by the model of its time"));
    EXPECT_THAT(whole, Not(HasSubstr("is not declared")));
    some.max_threads = 256;  // two warpgroups have no room for a role that loads
    const Schedule s = choose_schedule({z}, some);
    EXPECT_THAT(s.explain(), HasSubstr("'z' is a product of matrices, of which 'z_rows' is copied first"));
    EXPECT_THAT(
        s.explain(),
        HasSubstr("'z' is not declared over a raster with its halo, by tiling halo256b32s2t2, by the model of its "
                  "time: z: its thread loops and roles need 384 threads, a block of sm_90a has at most 256"));
    EXPECT_THAT(s.explain(), HasSubstr("without copies of operands: 'z' is not computed by tensor cores"));
}

/// As names do: with what stands around the sums, whose tiling of the record may be either of the two.
TEST(ChooseConvolution, TakesTheTilingOfItsRecord) {
    const Target h200 = target("sm_90a");
    const Tensor z = layer_with_bias();
    const std::string by_model = choose_schedule({z}, h200).save();
    auto with = [&](const std::string& tiling) {
        return RecordsInUse({{.kernel = "convolution_bf16_264x56x56x64_64_3x3_pad1",
                              .tiling = tiling,
                              .schedule = {},
                              .device = "NVIDIA H200",
                              .arch = "sm_90a",
                              .version = {}}});
    };
    {
        const auto in_use = with("halo128b32s3t1");
        const Schedule s = choose_schedule({z}, h200);
        EXPECT_THAT(s.explain(), HasSubstr("'z_sums': tiling halo128b32s3t1, from its record"));
        EXPECT_THAT(s.trace_as_cpp(), HasSubstr(", {128, 32}, Tail::Mask, {\"tile\""));
    }
    {
        const auto in_use = with("64x64x64w1s3p1t1");
        const Schedule s = choose_schedule({z}, h200);
        EXPECT_THAT(s.explain(), HasSubstr("'z': tiling 64x64x64w1s3p1t1, from its record"));
        EXPECT_THAT(s.trace_as_cpp(), HasSubstr(", 64, Tail::Mask, {\"tile\", \"row\""));
    }
    {
        const auto in_use = with("halo250b25s2t2");  // which no instruction has
        const Schedule s = choose_schedule({z}, h200);
        EXPECT_EQ(s.save(), by_model);
        EXPECT_THAT(s.explain(),
                    HasSubstr("'z' is not declared over a raster with its halo, by tiling halo250b25s2t2, from "
                              "its record: "));
    }
    {
        const auto in_use = with("512x256x64w1s8p1t1");
        const Schedule s = choose_schedule({z}, h200);
        EXPECT_EQ(s.save(), by_model);
        EXPECT_THAT(s.explain(),
                    HasSubstr("'z' is not as its record says, by tiling 512x256x64w1s8p1t1, from its record: "));
    }
    EXPECT_EQ(choose_schedule({z}, h200).save(), by_model);
}

/// Bit for bit, of either kind and of each pass.
TEST_P(ChooseConvolutions, OfARecordAreTheDeclared) {
    const ConvolutionShape shape{.images = 2,
                                 .height = 9,
                                 .width = 8,
                                 .channels = 32,
                                 .filters = 64,
                                 .kernel_h = 3,
                                 .kernel_w = 3,
                                 .padding = 1};
    const std::pair<ConvolutionPass, const char*> tilings[] = {
        {ConvolutionPass::Forward, "halo64b32s3t1"},      {ConvolutionPass::Forward, "64x32x32w1s3p1t1b32"},
        {ConvolutionPass::DataGradient, "halo96b16s2t2"}, {ConvolutionPass::DataGradient, "64x16x32w1s3p2t1"},
        {ConvolutionPass::WeightGradient, "halo32s2p3"},  {ConvolutionPass::WeightGradient, "64x32x32w1s4p2t1"}};
    for (const auto& [pass, tiling] : tilings) {
        SCOPED_TRACE(tiling);
        const std::string names[] = {"convolution", "convolution_data_gradient", "convolution_weight_gradient"};
        const RecordsInUse in_use({{.kernel = names[static_cast<int>(pass)] + "_bf16_2x9x8x32_64_3x3_pad1",
                                    .tiling = tiling,
                                    .schedule = {},
                                    .device = {},
                                    .arch = "sm_90a",
                                    .version = {}}});
        const Tensor given = plain_convolution(shape, pass);
        const Schedule s = choose_schedule({given}, device_target());
        EXPECT_THAT(s.explain(), HasSubstr(fmt::format("tiling {}, from its record", tiling)));
        const Bindings bindings = whole_numbers({given}, 3);
        Executable executable(build(s), device_);
        EXPECT_EQ(difference("result", run_on(executable, bindings)[0], interpret_plain({given}, bindings)[0], bitwise),
                  std::nullopt);
    }
}

/// Results that others read are those of the declaration that was chosen: layers one behind another, and a loss.
TEST(ChooseConvolution, IsReadByOthers) {
    const Tensor x = input("x", bf16, {2, 12, 12, 3}), w = input("w", bf16, {64, 3, 3, 3}),
                 v = input("first_x_rows", bf16, {64, 3, 3, 64});
    const Tensor first = convolve("first", x, w, {}, {.padding = {1}});  // and a name that a copy would have
    const Tensor hidden = compute("hidden", {2, 12, 12, 64}, [&](Expr n, Expr i, Expr j, Expr f) {
        return cast(bf16, min(relu(cast(f32, first(n, i, j, f))), 2.0));
    });
    const Tensor second = convolve("second", hidden, v, {}, {.padding = {1}});
    Axis n = reduce_axis("n", 2), i = reduce_axis("i", 12), j = reduce_axis("j", 12);
    const Tensor totals = compute("totals", {64}, [&](Expr f) {
        return sum(cast(f32, second(n, i, j, f)), {n, i, j});
    });
    Target some = target("sm_90a");
    some.multiprocessors = 3;
    const std::vector<Tensor> outputs{second, totals};
    const Schedule s = choose_schedule(outputs, some);
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.mma(first"));
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("first_x_rows_2"));
    const Bindings bindings = whole_numbers(s.outputs(), 5);
    Executable executable(build(s), open_device("emulated:sm_90a"));
    const std::vector<HostArray> got = run_on(executable, bindings), expected = interpret_plain(outputs, bindings);
    for (size_t k = 0; k < outputs.size(); ++k)
        EXPECT_EQ(difference(outputs[k].name(), got[k], expected[k], bitwise), std::nullopt);
}

/// Images as many as a launch says.
TEST(ChooseConvolution, OfANamedNumberOfImagesIsRightAndSaysWhyItIsSlow) {
    const Expr n = size("n", {.min = 1, .max = 8});
    const Tensor x = input("x", bf16, {n, 9, 8, 16}), w = input("w", bf16, {24, 3, 3, 16});
    const Tensor y = convolve("y", x, w, {}, {.padding = {1}});
    const Program program = build(choose_schedule({y}, target("sm_90a")));
    EXPECT_THAT(program.explain(),
                HasSubstr("'y' is not computed by tensor cores: the extent n of 'y' is a named size"));
    Bindings bindings = whole_numbers({y}, 3);
    Executable executable(program, open_device("emulated:sm_90a"));
    EXPECT_EQ(difference("y", run_on(executable, bindings)[0], interpret_plain({y}, bindings)[0], bitwise),
              std::nullopt);
}

/// Elements decide which terms there are.
TEST_P(ChooseConvolutions, OfMaskedPixelsAreTheDeclared) {
    const Tensor x = input("x", bf16, {2, 6, 6, 16}), w = input("w", bf16, {16, 3, 3, 16}),
                 mask = input("mask", i32, {2, 4, 4});
    const Axis r = reduce_axis("r", 3), s = reduce_axis("s", 3), c = reduce_axis("c", 16);
    const Tensor y = compute("y", {2, 4, 4, 16}, [&](Expr n, Expr p, Expr q, Expr f) {
        const Expr term = cast(f32, x(n, p + r, q + s, c)) * cast(f32, w(f, r, s, c));
        return sum(select(mask(n, p, q) > 0, term, 0.0), {r, s, c});
    });
    expect_declared(choose_schedule({y}, device_target()), whole_numbers({y}, 3));
}

/// Bit for bit: sums of whole numbers are exact in any order.
TEST_P(ChooseConvolutions, OfAnyShapeAreTheDeclared) {
    const int rounds = GetParam() == "cuda" ? 30 : 9;
    int found = 0;
    for (int round = 0; round < rounds; ++round) {
        const ConvolutionShape shape = random_shape();
        Target some = device_target();
        some.multiprocessors = between(1, 6);  // so that blocks have several tiles in turn
        for (ConvolutionPass pass : passes) {
            SCOPED_TRACE(text_of(shape, pass));
            const bool is_forward = pass == ConvolutionPass::Forward;
            const Tensor given =
                plain_convolution(shape, pass, is_forward && chance() ? input("bias", f32, {shape.filters}) : Tensor());
            const Tensor moved = with_channels_moved(given);
            const auto convolution = find_convolution(moved, {moved});
            if (convolution) ++found;
            const Schedule s = choose_schedule({given}, some);
            const Bindings bindings = whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000)));
            Executable executable(build(s), device_);
            EXPECT_EQ(
                difference("result", run_on(executable, bindings)[0], interpret_plain({given}, bindings)[0], bitwise),
                std::nullopt);
        }
    }
    EXPECT_GE(found, rounds * 2) << found;
}

}  // namespace
}  // namespace tw::schedules

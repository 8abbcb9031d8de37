// Convolutions and their gradients as implicit products: images of any size, by boxes that walk over pixels.
#include "schedules/convolution.h"

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "runtime/compile/compile.h"
#include "schedules/catalog.h"
#include "schedules/choose_windows.h"
#include "schedules/plan_groups.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/schedules/plain_convolution.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;

constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

class Convolutions : public RandomCases {
protected:
    Convolutions() : RandomCases(16) {}

    ConvolutionShape random_shape() {
        ConvolutionShape s{.images = between(1, 3),
                           .height = between(1, 11),
                           .width = between(1, 11),
                           .channels = chance() ? 8 * between(1, 10) : between(1, 40),
                           .filters = chance() ? 8 * between(1, 10) : between(1, 40),
                           .kernel_h = between(1, 5),
                           .kernel_w = between(1, 5),
                           .stride = chance() ? 1 : between(2, 3),
                           .padding = between(0, 3),
                           .dilation = chance() ? 1 : 2,
                           .type = chance() ? bf16 : f16,
                           .layout = chance() ? Layout::ChannelsFirst : Layout::ChannelsLast};
        if (between(0, 2) == 0) s.groups = between(2, 6), s.channels *= s.groups, s.filters *= s.groups;
        s.height = std::max(s.height, (s.kernel_h - 1) * s.dilation + 1 - 2 * s.padding);
        s.width = std::max(s.width, (s.kernel_w - 1) * s.dilation + 1 - 2 * s.padding);
        return s;
    }

    ConvolutionTiles random_tiles(const Convolution& c) {
        const ConvolutionForm form = window_product(c.product, {c.result}).value_or(WindowProduct()).form;
        const bool sums_pixels = form.sums_pixels;
        const int warpgroups = sums_pixels && form.group > 0 ? 1 : static_cast<int>(between(1, 2));
        const bool joins_taps = sums_pixels && !form.taps.empty() && chance();
        ConvolutionTiles tiles{
            .rows = 64 * warpgroups,
            .columns = sums_pixels      ? 64
                       : form.group > 0 ? 16
                                        : 32 * between(1, 3),
            .terms = !sums_pixels && form.group > 0 ? 16
                     : chance()                     ? 64
                                                    : 32,
            .warpgroups = warpgroups,
            .stages = static_cast<int>(joins_taps ? 2 : between(2, 4)),
            .parts = sums_pixels || (form.group == 0 && !form.has_phases() && chance()) ? between(1, 3) : 1,
            .taps = joins_taps ? form.taps.back() : 1};
        const bool has_boxes = !sums_pixels && !form.has_phases() && form.extents.columns % 8 == 0 &&
                               form.extents.rows >= tiles.rows && form.extents.columns >= tiles.columns &&
                               form.group == 0;
        if (has_boxes && tiles.parts == 1 && between(0, 3) > 0)
            tiles.box_columns = tiles.columns % 64 == 0 && chance() ? 64 : 32;
        if (tiles.box_columns > 0 && tiles.columns / tiles.box_columns % 2 == 0 && chance()) tiles.box_stages = 2;
        return tiles;
    }
};
TW_ON_EACH_DEVICE(Convolutions);

/// Bit for bit: sums of whole numbers are exact in any order.
TEST_P(Convolutions, OfAnyShapeAreTheDeclared) {
    const int rounds = GetParam() == "cuda" ? 30 : 16;
    for (int round = 0; round < rounds; ++round) {
        const ConvolutionShape shape = random_shape();
        for (ConvolutionPass pass : passes) {
            const Convolution c = declare_convolution(shape, pass);
            const Schedule s = convolution_schedule(c, shape, random_tiles(c), device_target());
            SCOPED_TRACE(s.trace_as_cpp());
            if (shape.flops() < 2e5) expect_plain(c.result, shape, pass, static_cast<unsigned>(round));
            EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
            expect_declared(s, whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000))));
        }
    }
}

/// Where there is NVRTC.
void expect_no_spills(const Program& program, const std::string& name) {
    for (const auto& kernel : program.kernels()) {
        try {
            const CompiledKernel compiled =
                compile_kernel({.source = kernel.cuda, .name = kernel.name + ".cu", .arch = "sm_90a", .options = {}});
            const Resources& resources = compiled.of(kernel.name);
            EXPECT_EQ(resources.spill_store_bytes + resources.spill_load_bytes, 0) << name << ": " << kernel.name;
        } catch (const NvrtcMissing&) {
        }
    }
}

/// The tiles that the model chooses can be built, without spilling.
TEST(ConvolutionTiles, OfLayersCanBeBuilt) {
    for (const char* layer : {"256x56x56x64_64_3x3_pad1", "256x56x56x256_512_1x1_stride2", "8x64x64x320_320_3x3_pad1",
                              "256x7x7x2048_512_1x1", "3x5x9x24_40_3x2_pad3_dilation3", "64x14x14x8_16_1x1",
                              "64x9x60x256_24_3x1_stride2_pad2",  // parts of pixels that do not come out even
                              "2x5x9x16_24_3x3_pad1_dilation2",   // as many taps as pixels along a side
                              "32x64x64x3_64_7x7_stride2_pad3"})
        for (const char* pass : {"", "_data_gradient", "_weight_gradient"}) {
            const std::string name = std::string("convolution") + pass + "_bf16_" + layer;
            const auto named = parse_convolution(name);
            ASSERT_TRUE(named) << name;
            const Target h200 = target("sm_90a");
            EXPECT_TRUE(takes_warpgroups(named->shape, h200)) << name;
            const Schedule s = find_kernel(name)->make(h200);
            EXPECT_LE(s.trace().size(), 40u) << name;  // copies of few channels included
            const Program program = build(s);
            EXPECT_THAT(program.explain(), HasSubstr(": by the tensor memory accelerator")) << name;
            expect_no_spills(program, name);
        }
}

TEST(ConvolutionShapes, CountWhatIsMovedAndComputed) {
    const ConvolutionShape s{.images = 2,
                             .height = 9,
                             .width = 8,
                             .channels = 16,
                             .filters = 32,
                             .kernel_h = 3,
                             .kernel_w = 2,
                             .stride = 2,
                             .padding = 1};
    EXPECT_EQ(s.rows(), 5);
    EXPECT_EQ(s.columns(), 5);
    EXPECT_EQ(s.flops(), 2.0 * 2 * 5 * 5 * 32 * 16 * 3 * 2);
    EXPECT_EQ(s.bytes(), 2.0 * (2 * 9 * 8 * 16 + 2 * 5 * 5 * 32 + 32 * 3 * 2 * 16));
}

TEST(ConvolutionNames, AreShapesPassesAndTiles) {
    const auto named =
        parse_convolution("convolution_weight_gradient_f16_2x9x8x16_32_3x2_stride2_pad1_tile64x128x32w1s3p4t1b64x2k6");
    ASSERT_TRUE(named);
    EXPECT_EQ(named->pass, ConvolutionPass::WeightGradient);
    EXPECT_EQ(named->shape, (ConvolutionShape{.images = 2,
                                              .height = 9,
                                              .width = 8,
                                              .channels = 16,
                                              .filters = 32,
                                              .kernel_h = 3,
                                              .kernel_w = 2,
                                              .stride = 2,
                                              .padding = 1,
                                              .type = f16}));
    EXPECT_EQ(named->tiles, (ConvolutionTiles{.rows = 64,
                                              .columns = 128,
                                              .terms = 32,
                                              .warpgroups = 1,
                                              .stages = 3,
                                              .parts = 4,
                                              .box_columns = 64,
                                              .box_stages = 2,
                                              .taps = 6}));
    for (const char* name : {"convolution_bf16_2x9x8x16_32", "convolution_f32_2x9x8x16_32_3x3",
                             "convolution_bf16_2x2x8x16_32_3x3", "convolution_bf16_2x9x8x16_32_3x3_stride0"})
        EXPECT_FALSE(parse_convolution(name)) << name;
}

TEST(ConvolutionShapes, WithoutAPixelAreRefused) {
    EXPECT_ERROR(declare_convolution(
                     {.images = 1, .height = 2, .width = 9, .channels = 8, .filters = 8, .kernel_h = 3, .kernel_w = 3},
                     ConvolutionPass::Forward),
                 "a kernel of 3 x 3 with dilation 1 and stride 1 has no place in images of 2 x 9");
}

TEST(ConvolutionShapes, HaveGroupsThatDivideThem) {
    ConvolutionShape shape{.images = 1,
                           .height = 9,
                           .width = 9,
                           .channels = 192,
                           .filters = 192,
                           .kernel_h = 3,
                           .kernel_w = 3,
                           .groups = 5};
    EXPECT_ERROR(declare_convolution(shape, ConvolutionPass::Forward),
                 "5 groups do not divide 192 channels and 192 filters; give a common divisor");
    EXPECT_FALSE(parse_convolution("convolution_bf16_1x9x9x192_192_3x3_groups5"));
    shape.groups = 2;
    const Convolution c = declare_convolution(shape, ConvolutionPass::Forward);
    EXPECT_ERROR(convolution_schedule(c, shape, ConvolutionTiles{.columns = 64}, target("sm_90a")),
                 "groups of 96 rows or columns, which tiles of 64 do not divide; choose a divisor");
}

/// Four images whose rows of 280 channels begin in the middle of 32 bytes: more costs less than it gains.
TEST(ConvolutionShapes, HaveRowsOfWholeSectorsWhereThatPays) {
    auto channels = [](int64_t images, int64_t side) {
        const ConvolutionShape shape{.images = images,
                                     .height = side,
                                     .width = side,
                                     .channels = 280,
                                     .filters = 1088,
                                     .kernel_h = 2,
                                     .kernel_w = 2};
        const Convolution c = declare_convolution(shape, ConvolutionPass::Forward);
        return as_constant(c.windows.shape().back()).value_or(0);
    };
    EXPECT_EQ(channels(4, 52), 288);
    EXPECT_EQ(channels(1, 20), 280);
}

/// The windows' copy has zeros behind 20 filters or 276 channels, and those of the other operand are boxes' own.
TEST_P(Convolutions, OnlyWindowsAreCopiedForWholePieces) {
    for (const auto& [pass, channels, filters, stride] : {std::tuple(ConvolutionPass::DataGradient, 40, 20, 1),
                                                          {ConvolutionPass::DataGradient, 40, 20, 2},
                                                          {ConvolutionPass::DataGradient, 30, 20, 1},
                                                          {ConvolutionPass::WeightGradient, 21, 20, 1}}) {
        const ConvolutionShape shape{.images = 2,
                                     .height = 7,
                                     .width = 6,
                                     .channels = channels,
                                     .filters = filters,
                                     .kernel_h = 3,
                                     .kernel_w = 2,
                                     .stride = stride,
                                     .padding = 1};
        const Convolution c = declare_convolution(shape, pass);
        const bool copies_other = channels % 8 != 0;
        EXPECT_EQ(c.copies.size(), copies_other ? 2u : 1u) << channels;
        EXPECT_TRUE(c.result.same(c.product)) << channels;
        const Schedule s = convolution_schedule(c, shape, {}, device_target());
        if (s.target().has_wgmma) {
            const std::string how = build(s).explain();
            EXPECT_THAT(how, HasSubstr(c.windows.name() + "_shared: by the tensor memory accelerator")) << channels;
            EXPECT_THAT(how, HasSubstr(c.other.name() + "_shared: by the tensor memory accelerator")) << channels;
        }
        expect_declared(s, whole_numbers(s.outputs(), 3));
        expect_plain(c.result, shape, pass, 4);
    }
}

/// Groups of 40 channels, or of so few that all groups have less than a piece, and 20 filters, one by one, with zeros
/// behind each.
TEST_P(Convolutions, GroupsOfAnySizeHaveZerosBehindThem) {
    ConvolutionShape shape{.images = 2,
                           .height = 5,
                           .width = 4,
                           .channels = 120,
                           .filters = 60,
                           .kernel_h = 3,
                           .kernel_w = 2,
                           .padding = 1,
                           .groups = 3};
    for (const auto& [channels, pass] : {std::pair(120, ConvolutionPass::Forward),
                                         {120, ConvolutionPass::DataGradient},
                                         {120, ConvolutionPass::WeightGradient},
                                         {6, ConvolutionPass::Forward},
                                         {6, ConvolutionPass::DataGradient},
                                         {3, ConvolutionPass::WeightGradient}}) {
        shape.channels = channels;
        const Convolution c = declare_convolution(shape, pass, padded_groups(shape, pass));
        const ConvolutionForm form = product_of(c).form;
        EXPECT_EQ(form.group, form.sums_pixels ? form.extents.rows : form.extents.columns);
        const Schedule s = convolution_schedule(c, shape, {}, device_target());
        if (s.target().has_wgmma) {
            EXPECT_THAT(build(s).explain(), HasSubstr(c.windows.name() + "_shared: by the tensor memory"));
        }
        expect_declared(s, whole_numbers(s.outputs(), 5));
        expect_plain(c.result, shape, pass, 6);
    }
}

/// A group of 60 channels has 64 where four together, with zeros for each other, would take longer than copies.
TEST(ConvolutionShapes, HaveGroupsWithZerosBehindThemWhereThatPays) {
    ConvolutionShape shape{.images = 1,
                           .height = 148,
                           .width = 148,
                           .channels = 240,
                           .filters = 512,
                           .kernel_h = 5,
                           .kernel_w = 5,
                           .stride = 2,
                           .padding = 2,
                           .groups = 4};
    EXPECT_EQ(plan_groups(shape, ConvolutionPass::Forward).joined, 1);
    EXPECT_EQ(plan_groups(shape, ConvolutionPass::Forward).channels, 64);
    shape.height = 12;
    EXPECT_EQ(plan_groups(shape, ConvolutionPass::Forward).joined, 4);
}

/// A pixel has the taps of its phase alone, by boxes of dy as it is: with more taps than pixels, with dilations that
/// the stride divides, shares a factor with, or does not.
TEST_P(Convolutions, GradientsWithStridesTakeTheTapsOfAPhase) {
    for (const auto& [height, width, taps, stride, padding, dilation] : {std::tuple(9, 5, 5, 2, 0, 1),
                                                                         {9, 8, 3, 2, 1, 2},
                                                                         {8, 9, 3, 3, 2, 2},
                                                                         {9, 11, 3, 4, 1, 2},
                                                                         {15, 9, 3, 4, 3, 6}}) {
        const ConvolutionShape shape{.images = 2,
                                     .height = height,
                                     .width = width,
                                     .channels = 24,
                                     .filters = 32,
                                     .kernel_h = taps,
                                     .kernel_w = 2,
                                     .stride = stride,
                                     .padding = padding,
                                     .dilation = dilation};
        const Convolution c = declare_convolution(shape, ConvolutionPass::DataGradient);
        EXPECT_TRUE(c.copies.empty() && c.windows.same(c.dy)) << stride << " " << dilation;
        EXPECT_EQ(product_of(c).form.phases, (std::vector<int64_t>{1, stride, stride}));
        const Schedule s = convolution_schedule(c, shape, {}, device_target());
        if (s.target().has_wgmma) {
            EXPECT_THAT(build(s).explain(), HasSubstr("dy_shared: by the tensor memory"));
        }
        expect_declared(s, whole_numbers(s.outputs(), 5));
        expect_plain(c.result, shape, ConvolutionPass::DataGradient, 6);
    }
}

/// c[i, j] = sum a[i, k] b[k, j] over 144 terms, of which a has 144 and b 136: boxes end where operands do.
TEST_P(Convolutions, ProductsHaveTermsBehindAnOperand) {
    const Tensor a = input("a", bf16, {128, 144}), b = input("b", bf16, {136, 64});
    const Axis k = reduce_axis("k", 144);
    const Tensor c = compute(
        "c", {128, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, padded(b, 0)(k, j)), k); });
    Schedule s({c}, device_target());
    if (!s.target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    auto [i, j] = s.loops<2>(c);
    auto [step, term] = s.split(s.reduce(c), 64, Tail::Mask, {"step", "k"});
    s.order({step, i, j, term});
    s.stage(c, a, Memory::Shared, step);
    s.stage(c, b, Memory::Shared, step, As::Matrix);
    s.mma(c, wgmma, {.m = i, .n = j, .k = term});
    s.pipeline(step, {.stages = 2});
    EXPECT_THAT(build(s).explain(), HasSubstr("b_shared: by the tensor memory accelerator, boxes"));
    expect_declared(s, whole_numbers(s.outputs(), 8));
}

/// y[i, j, f] = sum x[i - r, j - q, c] w[f, r, q, c], its copies made ahead by those that compute: the iteration behind
/// the last seems to reach further than any.
TEST_P(Convolutions, BackwardTapsInATileOfOneImage) {
    const Tensor x = input("x", bf16, {2, 8, 8, 16}), w = input("w", bf16, {16, 3, 3, 16});
    const Axis r = reduce_axis("r", 3), q = reduce_axis("q", 3), c = reduce_axis("c", 16);
    const Tensor y = compute("y", {2, 8, 8, 16}, [&](Expr n, Expr i, Expr j, Expr f) {
        return sum(cast(f32, padded(x, 0)(n, i - r, j - q, c)) * cast(f32, w(f, r, q, c)), {r, q, c});
    });
    Schedule s({y}, device_target());
    if (!s.target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    auto [n, i, j, f] = s.loops<4>(y);
    auto [tile, row] = s.split(s.fuse({n, i, j}, "m"), 64);
    s.order({tile, s.reduce(y, 0), s.reduce(y, 1), row, f, s.reduce(y, 2)});
    const Loop k = s.reduce(y, 2), step = s.fuse(s.reduce(y, 0), s.reduce(y, 1), "step");
    s.bind(tile, grid.x);
    s.stage(y, x, Memory::Shared, step, As::Matrix);
    s.stage(y, w, Memory::Shared, step, As::Matrix);
    s.mma(y, wgmma, {.m = row, .n = f, .k = k});
    s.pipeline(step, {.stages = 2});
    expect_declared(s, whole_numbers(s.outputs(), 4));
}

/// y[t, f] = sum x[b, 3 t + r, c] w[f, r, c]: a bank of filters over time, of which each third result is kept.
TEST_P(Convolutions, FiltersOverTimeAreWalksOfThreeDimensions) {
    Tensor x = input("x", bf16, {3, 50, 40}), w = input("w", bf16, {72, 5, 40});
    Axis r = reduce_axis("r", 5), c = reduce_axis("c", 40);
    Tensor y = compute("y", {3, 17, 72}, [&](Expr b, Expr t, Expr f) {
        return sum(cast(f32, padded(x, 0)(b, t * 3 + r - 2, c)) * cast(f32, w(f, r, c)), {r, c});
    });
    Schedule s({y}, device_target());
    schedule_windows(s, {.result = y, .a = x, .b = w, .form = {.terms_axis = 1}},
                     {.rows = 64, .columns = 72, .warpgroups = 1});
    EXPECT_THAT(build(s).explain(), HasSubstr("x_shared: by the tensor memory accelerator, pixels (im2col)"));
    expect_declared(s, whole_numbers(s.outputs(), 5));
    const Tensor narrow = input("narrow", bf16, {3, 17, 72});
    const Tensor dw = gradients(y, narrow, {w})[0];
    Schedule g({dw}, device_target());
    schedule_sum_of_pixels(g, {.result = dw, .a = narrow, .b = x},
                           {.rows = 128, .columns = 64, .warpgroups = 2, .parts = 2});
    expect_declared(g, whole_numbers(g.outputs(), 7));
}

/// y[b, s, f] = sum o[b, s, h, d] w[h, d, f]: heads are projected together, and their gradient is a sum over tokens.
TEST_P(Convolutions, HeadsTogetherAreTermsOfAProduct) {
    Tensor o = input("o", bf16, {2, 45, 3, 64}), w = input("w", bf16, {3, 64, 96});
    Axis h = reduce_axis("h", 3), d = reduce_axis("d", 64);
    Tensor y = compute("y", {2, 45, 96}, [&](Expr b, Expr t, Expr f) {
        return sum(cast(f32, o(b, t, h, d)) * cast(f32, w(h, d, f)), {h, d});
    });
    Schedule s({y}, device_target());
    schedule_windows(s, {.result = y, .a = o, .b = w, .form = {.terms_axis = 1}},
                     {.rows = 128, .columns = 96, .warpgroups = 2});
    expect_declared(s, whole_numbers(s.outputs(), 6));
}

}  // namespace
}  // namespace tw::schedules

// Depthwise convolutions and their gradients: windows in registers, of images of any size.
#include "schedules/depthwise.h"

#include <array>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "runtime/compile/compile.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;

constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

/// The formula, without tiles and copies; gradients are those of it.
Tensor plain(const DepthwiseShape& s, ConvolutionPass pass) {
    Tensor x = input("x", s.type, {s.images, s.height, s.width, s.channels}),
           w = input("w", s.type, {s.channels, s.kernel_h, s.kernel_w, 1}),
           dy = input("dy", s.type, {s.images, s.rows(), s.columns(), s.channels});
    Axis r = reduce_axis("r", s.kernel_h), t = reduce_axis("s", s.kernel_w);
    Tensor y = compute("y", {s.images, s.rows(), s.columns(), s.channels}, [&](Expr n, Expr p, Expr q, Expr c) {
        Expr element =
            padded(x, 0)(n, p * s.stride + r * s.dilation - s.padding, q * s.stride + t * s.dilation - s.padding, c);
        return cast(s.type, sum(cast(f32, element) * cast(f32, w(c, r, t, 0)), {r, t}));
    });
    if (pass == ConvolutionPass::Forward) return y;
    return gradients(y, dy, {pass == ConvolutionPass::DataGradient ? x : w})[0];
}

class Depthwises : public RandomCases {
protected:
    Depthwises() : RandomCases(23) {}

    DepthwiseShape random_shape() {
        DepthwiseShape s{.images = between(1, 3),
                         .height = between(1, 11),
                         .width = between(1, 11),
                         .channels = chance() ? 8 * between(1, 5) : between(1, 40),
                         .kernel_h = between(1, 5),
                         .kernel_w = between(1, 5),
                         .stride = chance() ? 1 : between(2, 3),
                         .padding = between(0, 5),
                         .dilation = chance() ? 1 : 2,
                         .type = std::array{bf16, f16, f32}[static_cast<size_t>(between(0, 2))]};
        s.height = std::max(s.height, (s.kernel_h - 1) * s.dilation + 1 - 2 * s.padding);
        s.width = std::max(s.width, (s.kernel_w - 1) * s.dilation + 1 - 2 * s.padding);
        return s;
    }

    DepthwiseTiles random_tiles(const DepthwiseShape& shape) {
        return {.thread_rows = between(1, 3),
                .thread_columns = between(1, 3),
                .rows = 2,
                .columns = between(1, 2),
                .lanes = 32 / between(1, 2),
                .steps = between(2, 4),
                .taps = between(1, static_cast<int>(shape.kernel_h))};
    }
};
TW_ON_EACH_DEVICE(Depthwises);

/// Sums of whole numbers are exact in any order, but for the sign of a zero.
TEST_P(Depthwises, OfAnyShapeAreTheFormula) {
    const int rounds = GetParam() == "cuda" ? 30 : 10;
    for (int round = 0; round < rounds; ++round) {
        const DepthwiseShape shape = random_shape();
        for (ConvolutionPass pass : passes) {
            const auto tiles = chance() ? std::optional(random_tiles(shape)) : std::nullopt;
            const Schedule s = depthwise_schedule(shape, pass, tiles, device_target());
            SCOPED_TRACE(s.trace_as_cpp());
            EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
            Executable executable(build(s), device_);
            const Tensor formula = plain(shape, pass);
            const auto seed = static_cast<unsigned>(between(0, 1000));
            Bindings bindings = whole_numbers({formula}, seed);
            bindings.inputs.merge(whole_numbers(s.outputs(), seed).inputs);  // operands that meet no pixel
            const auto differs = difference(formula.name(), run_on(executable, bindings)[0],
                                            interpret_plain({formula}, bindings)[0], equal_values);
            EXPECT_FALSE(differs) << *differs << "\n" << executable.program().cuda();
        }
    }
}

/// Without boxes, too.
TEST_P(Depthwises, OfOtherTargetsAreTheFormula) {
    const DepthwiseShape shape{
        .images = 2, .height = 6, .width = 5, .channels = 9, .kernel_h = 3, .kernel_w = 3, .stride = 2, .padding = 1};
    for (ConvolutionPass pass : passes) {
        const Schedule s = depthwise_schedule(shape, pass, {}, target("sm_80"));
        const Bindings bindings = whole_numbers({plain(shape, pass)}, 3);
        EXPECT_FALSE(difference("result", interpret_tree(s.tree(), bindings)[0],
                                interpret_plain({plain(shape, pass)}, bindings)[0], bitwise));
    }
}

/// The tiles that the model chooses can be built, without spilling.
TEST(DepthwiseTiles, OfLayersCanBeBuilt) {
    for (const char* layer :
         {"64x56x56x96_7x7_pad3", "64x14x14x384_7x7_pad3", "64x7x7x768_7x7_pad3", "64x112x112x32_3x3_pad1",
          "64x56x56x144_5x5_stride2_pad2", "1x9x200x20_3x5_pad2_dilation2", "2x31x31x8_31x31_pad15"})
        for (const char* pass : {"", "_data_gradient", "_weight_gradient"}) {
            const std::string name = std::string("depthwise") + pass + "_bf16_" + layer;
            ASSERT_TRUE(parse_depthwise(name)) << name;
            const Schedule s = find_kernel(name)->make(target("sm_90a"));
            const Program program = build(s);
            EXPECT_THAT(program.explain(), HasSubstr("by the tensor memory accelerator, boxes of")) << name;
            for (const auto& kernel : program.kernels()) {
                try {
                    const CompiledKernel compiled = compile_kernel(
                        {.source = kernel.cuda, .name = kernel.name + ".cu", .arch = "sm_90a", .options = {}});
                    const Resources& resources = compiled.of(kernel.name);
                    EXPECT_EQ(resources.spill_store_bytes + resources.spill_load_bytes, 0) << name;
                } catch (const NvrtcMissing&) {
                }
            }
        }
}

TEST(DepthwiseShapes, CountWhatIsMovedAndComputed) {
    const DepthwiseShape s{
        .images = 2, .height = 9, .width = 8, .channels = 16, .kernel_h = 3, .kernel_w = 2, .stride = 2, .padding = 1};
    EXPECT_EQ(s.rows(), 5);
    EXPECT_EQ(s.columns(), 5);
    EXPECT_EQ(s.flops(), 2.0 * 2 * 5 * 5 * 16 * 3 * 2);
    EXPECT_EQ(s.bytes(), 2.0 * (2 * 9 * 8 * 16 + 2 * 5 * 5 * 16 + 16 * 3 * 2));
}

TEST(DepthwiseNames, AreShapesPassesAndTiles) {
    const auto named = parse_depthwise("depthwise_weight_gradient_f16_2x9x8x16_3x2_stride2_pad1_tile2x3t4x1x16s5r2");
    ASSERT_TRUE(named);
    EXPECT_EQ(named->pass, ConvolutionPass::WeightGradient);
    EXPECT_EQ(named->shape, (DepthwiseShape{.images = 2,
                                            .height = 9,
                                            .width = 8,
                                            .channels = 16,
                                            .kernel_h = 3,
                                            .kernel_w = 2,
                                            .stride = 2,
                                            .padding = 1,
                                            .type = f16}));
    EXPECT_EQ(named->tiles,
              (DepthwiseTiles{
                  .thread_rows = 2, .thread_columns = 3, .rows = 4, .columns = 1, .lanes = 16, .steps = 5, .taps = 2}));
    for (const char* name : {"depthwise_bf16_2x9x8x16", "depthwise_f64_2x9x8x16_3x3", "depthwise_bf16_2x2x8x16_3x3",
                             "depthwise_bf16_2x9x8x16_3x3_stride0"})
        EXPECT_FALSE(parse_depthwise(name)) << name;
}

TEST(DepthwiseShapes, WithoutAPixelAreRefused) {
    EXPECT_ERROR(declare_depthwise({.images = 1, .height = 2, .width = 9, .channels = 8, .kernel_h = 3, .kernel_w = 3},
                                   ConvolutionPass::Forward, {}),
                 "a kernel of 3 x 3 with dilation 1 and stride 1 has no place in images of 2 x 9");
}

/// y[b, t, d] = sum_k x[b, t + k - 3, d] w[k, d]: a causal filter over time of each feature, in a window of one row.
TEST_P(Depthwises, FiltersOverTimeAreWindowsOfOneRow) {
    Tensor x = input("x", bf16, {2, 1, 50, 40}), w = input("w", f32, {4, 64});
    Tensor before =
        compute("before", {2, 1, 67, 64}, [&](Expr b, Expr h, Expr t, Expr d) { return padded(x, 0)(b, h, t - 3, d); });
    Axis r = reduce_axis("r", 1), k = reduce_axis("k", 4);
    Tensor sums = compute("sums", {2, 1, 64, 64}, [&](Expr b, Expr h, Expr t, Expr d) {
        return sum(cast(f32, before(b, h + r, t + k, d)) * w(k, d), {r, k});
    });
    Tensor y =
        compute("y", {2, 1, 50, 40}, [&](Expr b, Expr h, Expr t, Expr d) { return cast(bf16, sums(b, h, t, d)); });
    Schedule s({y}, device_target());
    schedule_windows_in_registers(
        s, y, {sums}, before, {},
        {.thread_rows = 1, .thread_columns = 8, .rows = 1, .columns = 2, .lanes = 32, .steps = 2});
    EXPECT_THAT(build(s).explain(), HasSubstr("by the tensor memory accelerator, boxes of"));
    expect_declared(s, whole_numbers(s.outputs(), 5));
}

}  // namespace
}  // namespace tw::schedules

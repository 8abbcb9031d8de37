// Convolutions and what stands around them in one kernel.
#include "schedules/fused_convolution.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "ops/check.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Epilogue = ConvolutionEpilogue;

/// So small that sums of squares over all pixels are exact.
Bindings small_numbers(const std::vector<Tensor>& outputs, unsigned seed) {
    Bindings bindings = random_bindings(outputs, seed);
    for (auto& [name, array] : bindings.inputs) fill_integers(array, -2, 2, ++seed);
    return bindings;
}

class FusedConvolutions : public RandomCases {
protected:
    FusedConvolutions() : RandomCases(23) {}

    FusedConvolutionShape random_shape() {
        ConvolutionShape s{.images = between(1, 3),
                           .height = between(3, 9),
                           .width = between(3, 9),
                           .channels = 8 * between(1, 9),
                           .filters = 8 * between(1, 10),
                           .kernel_h = between(1, 3),
                           .kernel_w = between(1, 3),
                           .stride = chance() ? 1 : 2,
                           .padding = between(0, 2),
                           .type = chance() ? bf16 : f16};
        if (s.stride > 1) s.images = 2;  // a walk down one narrow image leaves its descriptor's corners
        FusedConvolutionShape shape{.convolution = s, .prologue = chance(), .statistics = chance()};
        for (Epilogue step : {Epilogue::Bias, Epilogue::Residual, Epilogue::Relu, Epilogue::Residual})
            if (chance()) shape.epilogue.push_back(step);
        return shape;
    }

    ConvolutionTiles random_tiles(const FusedConvolutionShape& shape) {
        const ConvolutionShape& s = shape.convolution;
        const int warpgroups = static_cast<int>(between(1, 2));
        ConvolutionTiles tiles{.rows = 64 * warpgroups * between(1, 2),
                               .columns = 32 * between(1, 2),
                               .terms = chance() ? 64 : 32,
                               .warpgroups = warpgroups,
                               .stages = static_cast<int>(between(2, 4))};
        if (warpgroups == 1 && chance()) tiles.ping_pong = 2;
        if (s.images * s.rows() * s.columns() >= tiles.rows && s.filters >= tiles.columns && chance())
            tiles.box_columns = 32;
        return tiles;
    }
};
TW_ON_EACH_DEVICE(FusedConvolutions);

/// What a user would write takes so many statements.
TEST(ConvolutionSchedules, AreShort) {
    const std::pair<const char*, size_t> kernels[] = {
        {"convolution_bf16_256x28x28x128_128_3x3_pad1", 22},
        {"convolution_bf16_256x56x56x64_64_3x3_pad1", 28},
        {"convolution_weight_gradient_bf16_256x56x56x64_64_3x3_pad1", 24},
        {"convolution_fused_bf16_256x28x28x128_128_3x3_pad1_bias_relu", 22},
        {"convolution_fused_bf16_256x56x56x64_64_3x3_pad1_prologue_bias_residual_relu_statistics", 51},
        {"depthwise_bf16_64x56x56x96_7x7_pad3", 22},
        {"depthwise_data_gradient_bf16_64x56x56x144_5x5_stride2_pad2", 27},
        {"depthwise_weight_gradient_bf16_64x56x56x96_7x7_pad3", 29}};
    for (const auto& [name, most] : kernels)
        EXPECT_LE(find_library_kernel(name)->make(target("sm_90a")).trace().size(), most) << name;
}

/// Bit for bit: sums of whole numbers are exact in any order.
TEST_P(FusedConvolutions, OfAnyShapeAreTheDeclared) {
    for (int round = 0; round < 16; ++round) {
        const FusedConvolutionShape shape = random_shape();
        const ConvolutionTiles t = random_tiles(shape);
        const ConvolutionShape& c = shape.convolution;
        SCOPED_TRACE(fmt::format("{}x{}x{}x{} {} {}x{} stride {} pad {}; {}x{}x{} w{} p{}; statistics {} prologue {}",
                                 c.images, c.height, c.width, c.channels, c.filters, c.kernel_h, c.kernel_w, c.stride,
                                 c.padding, t.rows, t.columns, t.terms, t.warpgroups, t.ping_pong, shape.statistics,
                                 shape.prologue));
        const std::optional<ConvolutionTiles> tiles = round % 4 > 0 ? std::optional(t) : std::nullopt;
        const Schedule s = fused_convolution_schedule(declare_fused_convolution(shape), shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
        expect_declared(s, small_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000))));
    }
}

/// Over rasters, whose prologue is made once for all taps: as one kernel for each tap's windows says.
TEST_P(FusedConvolutions, OverRastersAreTheDeclared) {
    int taken = 0;
    for (int round = 0; round < 40 && taken < 8; ++round) {
        FusedConvolutionShape shape = random_shape();
        ConvolutionShape& c = shape.convolution;
        c.stride = 1;
        if (shape.prologue) c.filters = 64 * between(1, 2);
        const HaloTiles tiles{.places = 16 * between(1, 8),
                              .leaving = 16,
                              .stages = static_cast<int>(between(2, 3)),
                              .ping_pong = static_cast<int>(between(1, 2)),
                              .warpgroups = static_cast<int>(between(1, 2)),
                              .weight_stages = static_cast<int>(chance() ? 0 : between(2, 4))};
        if (tiles.warpgroups * tiles.ping_pong > 2) continue;
        if (!takes_halo(c, ConvolutionPass::Forward, tiles, device_target(), extras_of(shape))) continue;
        ++taken;
        SCOPED_TRACE(fmt::format(
            "{}x{}x{}x{} {} {}x{} pad {}; {} places, {} stages, {} turns, {} warpgroups, {} of "
            "weights; statistics {} prologue {}",
            c.images, c.height, c.width, c.channels, c.filters, c.kernel_h, c.kernel_w, c.padding, tiles.places,
            tiles.stages, tiles.ping_pong, tiles.warpgroups, tiles.weight_stages, shape.statistics, shape.prologue));
        Target some = device_target();
        some.multiprocessors = static_cast<int>(between(1, 4));
        const Schedule s = fused_halo_schedule(declare_fused_halo(shape, tiles.places), tiles, some);
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
        const Bindings bindings = small_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000)));
        Executable executable(build(s), device_);
        const std::vector<HostArray> got = run_on(executable, bindings),
                                     expected = interpret_plain(declare_fused_convolution(shape).outputs(), bindings);
        for (size_t k = 0; k < got.size(); ++k)
            EXPECT_EQ(difference(s.outputs()[k].name(), got[k], expected[k], bitwise), std::nullopt);
    }
    EXPECT_EQ(taken, 8);
}

/// Of random numbers, against float64.
TEST_P(FusedConvolutions, WithSiluErrAsTheirTypes) {
    for (const char* fused : {"_silu", "_prologue_bias_silu_residual_statistics"}) {
        const std::string name =
            std::string("convolution_fused_bf16_2x8x8x32_64_3x3_pad1_tile64x64x32w1s3p1t1b32") + fused;
        const Schedule s = find_library_kernel(name)->make(device_target());
        const Bindings bindings = random_bindings(s.outputs(), 3);
        Executable executable(build(s), device_);
        const std::vector<HostArray> got = run_on(executable, bindings);
        for (size_t k = 0; k < got.size(); ++k) {
            const CheckResult result = check_output(s.outputs()[k], bindings, got[k]);
            EXPECT_TRUE(result.ok) << name << ": " << s.outputs()[k].name() << ": " << result.text;
        }
    }
}

/// The tiles that the model chooses can be built, without spilling; statistics are one more kernel or two, which read
/// sums of tiles.
TEST(FusedConvolutionLayers, CanBeBuilt) {
    for (const char* layer : {"256x56x56x64_64_3x3_pad1", "256x28x28x128_128_3x3_pad1", "256x14x14x256_256_3x3_pad1",
                              "64x7x7x512_512_3x3_pad1", "256x28x28x128_160_3x3_pad1"})
        for (const char* fused : {"_bias_relu", "_bias_residual_relu", "_bias_silu_residual", "_statistics",
                                  "_bias_residual_relu_statistics", "_prologue", "_prologue_statistics"}) {
            const std::string name = std::string("convolution_fused_bf16_") + layer + fused;
            ASSERT_TRUE(parse_fused_convolution(name)) << name;
            const Program program = build(find_kernel(name)->make(target("sm_90a")));
            const bool with_halo = program.cuda().find("raster_shared") != std::string::npos;
            const std::string image = with_halo ? "raster" : name.find("prologue") == std::string::npos ? "x" : "a";
            EXPECT_THAT(program.explain(),
                        HasSubstr(image + "_shared: by the tensor memory accelerator, pixels (im2col)"));
            EXPECT_EQ(with_halo, layer == std::string("256x56x56x64_64_3x3_pad1")) << name;
            if (std::string(fused).find("residual") != std::string::npos) {
                EXPECT_THAT(program.explain(),
                            HasSubstr(with_halo ? "residual_raster_shared: by the tensor memory "
                                                  "accelerator, pixels (im2col)"
                                                : "residual_shared: by the tensor memory accelerator"));
            }
        }
}

/// Over a raster, too: one kernel makes the image, the sums, their epilogue and those of tiles.
TEST(FusedConvolutionLayers, OverRastersAreOneKernelWithoutSpills) {
    for (const char* fused : {"_bias_residual_relu", "_statistics", "_bias_relu_statistics",
                              "_bias_residual_relu_statistics", "_prologue_statistics", "_prologue_bias_relu"}) {
        const std::string name = std::string("convolution_fused_bf16_256x56x56x64_64_3x3_pad1") + fused;
        const Program program = build(find_kernel(name)->make(target("sm_90a")));
        const bool sums_up = name.find("statistics") != std::string::npos;
        EXPECT_LE(program.kernels().size(), sums_up ? 3u : 1u) << name;
        const std::string& cuda = program.kernels()[0].cuda;
        EXPECT_EQ(cuda.find("statistics_partial") != std::string::npos, sums_up) << name;
        for (size_t k = 1; k < program.kernels().size(); ++k)
            EXPECT_THAT(program.kernels()[k].cuda, Not(HasSubstr("bf16* __restrict__"))) << name;
        try {
            const CompiledKernel compiled = compile_kernel(
                {.source = cuda, .name = program.kernels()[0].name + ".cu", .arch = "sm_90a", .options = {}});
            const Resources& resources = compiled.of(program.kernels()[0].name);
            EXPECT_EQ(resources.spill_store_bytes + resources.spill_load_bytes, 0) << name;
        } catch (const NvrtcMissing&) {
        }
    }
}

TEST(FusedConvolutionNames, AreAConvolutionAndSteps) {
    const auto named = parse_fused_convolution(
        "convolution_fused_f16_2x9x8x16_32_3x2_stride2_tile64x32x32w1s3p1t1_prologue_bias_residual_silu_statistics");
    ASSERT_TRUE(named);
    EXPECT_EQ(named->shape.convolution, parse_convolution("convolution_f16_2x9x8x16_32_3x2_stride2")->shape);
    EXPECT_THAT(named->shape.epilogue, ElementsAre(Epilogue::Bias, Epilogue::Residual, Epilogue::Silu));
    EXPECT_TRUE(named->shape.statistics && named->shape.prologue);
    EXPECT_EQ(named->tiles->rows, 64);
    for (const char* name :
         {"convolution_fused_bf16_2x9x8x12_32_3x3", "convolution_fused_bf16_2x9x8x16_32_3x3_tanh",
          "convolution_bf16_2x9x8x16_32_3x3_bias", "convolution_fused_data_gradient_bf16_2x9x8x16_32_3x3_bias"})
        EXPECT_FALSE(parse_fused_convolution(name)) << name;
}

TEST(FusedConvolutionShapes, OfPartsOfPiecesAreRefused) {
    FusedConvolutionShape shape{
        .convolution = {
            .images = 1, .height = 5, .width = 5, .channels = 12, .filters = 8, .kernel_h = 3, .kernel_w = 3}};
    EXPECT_ERROR(declare_fused_convolution(shape),
                 "rows of 12 channels and of 8 filters are not whole pieces of 16 bytes; give multiples of 8");
    shape.convolution.channels = 16;
    shape.convolution.groups = 2;
    EXPECT_ERROR(declare_fused_convolution(shape), "fused convolution: 2 groups; give one");
    shape.convolution.groups = 1;
    shape.epilogue = {Epilogue::Residual};
    EXPECT_EQ(shape.bytes(), shape.convolution.bytes() + 2.0 * 3 * 3 * 8);
}

}  // namespace
}  // namespace tw::schedules

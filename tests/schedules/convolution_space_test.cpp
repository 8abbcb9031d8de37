// The tuner's search space of convolutions: what it holds builds, computes what the declaration says, and has a text.
#include "schedules/convolution_space.h"

#include <algorithm>

#include "ops/executable.h"
#include "ops/program.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

/// What groups, taps, strides, many and few channels, and rasters bring about.
const char* const layers[] = {"256x56x56x64_64_3x3_pad1",          "256x56x56x256_512_1x1_stride2",
                              "8x64x64x320_320_3x3_pad1",          "3x5x9x24_40_3x2_pad3_dilation3",
                              "64x9x60x256_24_3x1_stride2_pad2",   "32x64x64x3_64_7x7_stride2_pad3",
                              "64x28x28x256_256_3x3_pad1_groups16"};

ConvolutionShape shape_of(const std::string& layer) { return parse_convolution("convolution_bf16_" + layer)->shape; }

class ConvolutionSpaces : public RandomCases {
protected:
    ConvolutionSpaces() : RandomCases(31) {}

    /// At most `count` of the space, in any order.
    std::vector<ConvolutionTiling> some_of(std::vector<ConvolutionTiling> space, size_t count) {
        for (size_t k = 0; k < std::min(count, space.size()); ++k)
            std::swap(space[k],
                      space[static_cast<size_t>(between(static_cast<int>(k), static_cast<int>(space.size()) - 1))]);
        if (space.size() > count) space.resize(count);
        return space;
    }
};
TW_ON_EACH_DEVICE(ConvolutionSpaces);

/// All but parts of a sum of pixels whose ends do not coincide with those of a dimension, where boxes need that.
TEST_P(ConvolutionSpaces, BuildAndHaveTexts) {
    const Target h200 = target("sm_90a");
    int built = 0, refused = 0, halos = 0;
    for (const char* layer : layers)
        for (ConvolutionPass pass : passes) {
            const ConvolutionShape shape = shape_of(layer);
            const std::vector<ConvolutionTiling> space = convolution_space(shape, pass, h200);
            EXPECT_GE(space.size(), 10u) << layer;
            EXPECT_LE(space.size(), 60u) << layer;
            for (const ConvolutionTiling& tiling : space) {
                EXPECT_EQ(std::ranges::count(space, tiling), 1) << tiling_text(tiling);
                EXPECT_EQ(parse_convolution_tiling(tiling_text(tiling)), tiling) << tiling_text(tiling);
            }
            for (const ConvolutionTiling& tiling : some_of(space, 4)) {
                SCOPED_TRACE(fmt::format("{} pass {} {}", layer, static_cast<int>(pass), tiling_text(tiling)));
                halos += std::holds_alternative<HaloTiles>(tiling) ? 1 : 0;
                try {
                    build(convolution_schedule(shape, pass, tiling, h200));
                    ++built;
                } catch (const Error& error) {
                    ++refused;
                    EXPECT_NE(std::string(error.what()).find("its mask part *"), std::string::npos) << error.what();
                }
            }
        }
    EXPECT_LE(refused, built / 10);
    EXPECT_GE(halos, 5);
}

/// Bit for bit: sums of whole numbers are exact in any order.
TEST_P(ConvolutionSpaces, ComputeTheDeclaration) {
    for (int round = 0; round < 5; ++round) {
        ConvolutionShape shape{.images = between(1, 2),
                               .height = between(3, 9),
                               .width = between(3, 9),
                               .channels = 8 * between(1, 4),
                               .filters = 8 * between(1, 9),
                               .kernel_h = between(1, 3),
                               .kernel_w = between(1, 3),
                               .stride = chance() ? 1 : 2,
                               .padding = between(0, 1),
                               .type = chance() ? bf16 : f16};
        Target some = device_target();
        some.multiprocessors = between(2, 6);
        for (ConvolutionPass pass : passes)
            for (const ConvolutionTiling& tiling : some_of(convolution_space(shape, pass, some), 2)) {
                const Schedule s = convolution_schedule(shape, pass, tiling, some);
                SCOPED_TRACE(tiling_text(tiling) + "\n" + s.trace_as_cpp());
                const Bindings bindings = whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000)));
                Executable executable(build(s), device_);
                const HostArray got = run_on(executable, bindings)[0],
                                expected = interpret_plain({declare_convolution(shape, pass).result}, bindings)[0];
                EXPECT_EQ(difference("result", got, expected, bitwise), std::nullopt);
            }
    }
}

TEST(ConvolutionTilings, AreNoneWithoutWarpgroups) {
    const ConvolutionShape shape = shape_of("2x9x8x16_32_3x2");
    for (ConvolutionPass pass : passes) {
        EXPECT_TRUE(convolution_space(shape, pass, target("sm_80")).empty());
        EXPECT_FALSE(choose_convolution(shape, pass, target("sm_80")));
        EXPECT_ERROR(convolution_schedule(shape, pass, ConvolutionTiling(ConvolutionTiles{}), target("sm_80")),
                     "tiling 128x128x64w2s4p1t1 is of warpgroups, which sm_80 has not");
    }
}

TEST(ConvolutionTilings, OfRastersHaveChannelsLast) {
    const Target h200 = target("sm_90a");
    ConvolutionShape shape = shape_of("2x9x8x16_32_3x2");
    shape.layout = Layout::ChannelsFirst;
    EXPECT_FALSE(choose_convolution(shape, ConvolutionPass::Forward, h200));
    EXPECT_TRUE(convolution_space(shape, ConvolutionPass::Forward, h200).empty());
    EXPECT_ERROR(convolution_schedule(shape, ConvolutionPass::Forward, ConvolutionTiling(HaloTiles{}), h200),
                 "tiling halo256b32s2t2 is of a raster, whose channels come last; choose another, or another layout");
}

TEST(ConvolutionTilings, HaveTexts) {
    EXPECT_EQ(tiling_text(ConvolutionTiles{}), "128x128x64w2s4p1t1");
    EXPECT_EQ(tiling_text(ConvolutionTiles{.ping_pong = 2, .box_columns = 64, .box_stages = 2, .taps = 9}),
              "128x128x64w2s4p1t2b64x2k9");
    EXPECT_EQ(tiling_text(HaloTiles{}), "halo256b32s2t2");
    EXPECT_EQ(tiling_text(HaloTiles{.ping_pong = 1, .warpgroups = 2, .weight_stages = 4}), "halo256b32s2t1w2r4");
    EXPECT_EQ(tiling_text(HaloTiles{.leaving = 0, .stages = 3, .ping_pong = 1, .parts = 33}), "halo256s3p33");
    for (const char* wrong : {"", "128x128x64", "128x128x64w4s4p1t1", "halo0b32s2t2", "halo256s3p0", "halo256b32s2t2w2",
                              " halo256b32s2t2", "128x192x64g2s4r"})
        EXPECT_FALSE(parse_convolution_tiling(wrong)) << wrong;
}

}  // namespace
}  // namespace tw::schedules

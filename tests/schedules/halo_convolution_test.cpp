// Convolutions whose tiles come with their halo: images of any size, all three passes.
#include "schedules/halo_convolution.h"

#include <map>

#include <gmock/gmock.h>

#include "runtime/driver/emulated_device.h"
#include "schedules/catalog.h"
#include "schedules/fused_convolution.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;

constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

class HaloConvolutions : public RandomCases {
protected:
    HaloConvolutions() : RandomCases(5) {}

    ConvolutionShape random_shape() {
        ConvolutionShape s{.images = between(1, 5),
                           .height = between(1, 14),
                           .width = between(1, 14),
                           .channels = 8 * between(2, 8),
                           .filters = 8 * between(2, 8),
                           .kernel_h = between(1, 4),
                           .kernel_w = between(2, 4),
                           .dilation = chance() ? 1 : 2,
                           .type = chance() ? bf16 : f16};
        s.padding = between(0, static_cast<int>(std::min(s.kernel_h, s.kernel_w) - 1) * static_cast<int>(s.dilation));
        s.height = std::max(s.height, (s.kernel_h - 1) * s.dilation + 1 - 2 * s.padding);
        s.width = std::max(s.width, (s.kernel_w - 1) * s.dilation + 1 - 2 * s.padding);
        return s;
    }

    HaloTiles random_tiles() {
        const int64_t leaving = 16 * between(1, 3);
        return {
            .places = leaving * between(1, 256 / static_cast<int>(leaving) < 5 ? 256 / static_cast<int>(leaving) : 5),
            .leaving = leaving,
            .stages = between(2, 3),
            .ping_pong = between(1, 2),
            .parts = chance() ? 1 : between(2, 4)};  // of weight gradients
    }
};
TW_ON_EACH_DEVICE(HaloConvolutions);

/// Bit for bit what the plain declaration says: sums of whole numbers are exact in any order.
TEST_P(HaloConvolutions, OfAnyShapeAreTheDeclared) {
    const int rounds = GetParam() == "cuda" ? 40 : 12;
    std::map<ConvolutionPass, int> taken;
    for (int round = 0; round < rounds; ++round) {
        const ConvolutionShape shape = random_shape();
        Target some = device_target();
        some.multiprocessors = between(1, 6);  // so that blocks have several tiles in turn
        for (ConvolutionPass pass : passes) {
            const HaloTiles tiles = random_tiles();
            if (!takes_halo(shape, pass, tiles, some)) continue;
            ++taken[pass];
            const HaloConvolution c = declare_halo_convolution(shape, pass, tiles.whole_places());
            const Schedule s = halo_schedule(c, tiles, some);
            SCOPED_TRACE(s.trace_as_cpp());
            EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
            const Bindings bindings = whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000)));
            Executable executable(build(s), device_);
            const HostArray got = run_on(executable, bindings)[0],
                            expected = interpret_plain({declare_convolution(shape, pass).result}, bindings)[0];
            EXPECT_EQ(difference("result", got, expected, bitwise), std::nullopt);
        }
    }
    for (ConvolutionPass pass : passes) EXPECT_GE(taken[pass], rounds / 3);
}

/// Of several pieces of 64 channels: products run on from one to the next.
TEST_P(HaloConvolutions, OfManyChannelsTakeWeightsTapByTap) {
    int taken = 0;
    for (int round = 0; round < 40 && taken < 4; ++round) {
        ConvolutionShape shape = random_shape();
        shape.images = between(1, 2);
        shape.channels = 8 * between(9, 20);
        shape.filters = 8 * between(2, 17);
        HaloTiles tiles = random_tiles();
        tiles.warpgroups = tiles.ping_pong == 1 ? between(1, 2) : 1;
        tiles.weight_stages = between(2, 6);
        const ConvolutionPass pass = passes[between(0, 1)];
        Target some = device_target();
        some.multiprocessors = between(1, 4);
        if (!takes_halo(shape, pass, tiles, some)) continue;
        ++taken;
        const Schedule s = halo_schedule(declare_halo_convolution(shape, pass, tiles.places), tiles, some);
        SCOPED_TRACE(s.trace_as_cpp());
        const Bindings bindings = whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000)));
        Executable executable(build(s), device_);
        const HostArray got = run_on(executable, bindings)[0],
                        expected = interpret_plain({declare_convolution(shape, pass).result}, bindings)[0];
        EXPECT_EQ(difference("result", got, expected, bitwise), std::nullopt);
    }
    EXPECT_EQ(taken, 4);
}

/// Images of several pieces that are made in shared memory, a piece while products of the last one run.
TEST_P(HaloConvolutions, OfManyChannelsMakeImagesAhead) {
    int taken = 0;
    for (int round = 0; round < 40 && taken < 4; ++round) {
        FusedConvolutionShape shape{.convolution = random_shape(), .prologue = true};
        ConvolutionShape& c = shape.convolution;
        c.images = 1, c.dilation = 1, c.channels = 8 * between(9, 28);
        c.padding = std::min<int64_t>(c.padding, std::min(c.kernel_h, c.kernel_w) - 1);
        HaloTiles tiles = random_tiles();
        tiles.warpgroups = tiles.ping_pong == 1 ? between(1, 2) : 1;
        tiles.weight_stages = between(2, 5);
        c.filters = 64 * tiles.warpgroups;
        Target some = device_target();
        some.multiprocessors = between(1, 2);
        if (!takes_halo(c, ConvolutionPass::Forward, tiles, some, {.image = true})) continue;
        ++taken;
        const Schedule s = fused_halo_schedule(declare_fused_halo(shape, tiles.places), tiles, some);
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings bindings = random_bindings(s.outputs(), static_cast<unsigned>(round));
        for (auto& [name, array] : bindings.inputs) fill_integers(array, -2, 2, static_cast<unsigned>(round));
        Executable executable(build(s), device_);
        const HostArray got = run_on(executable, bindings)[0],
                        expected = interpret_plain(declare_fused_convolution(shape).outputs(), bindings)[0];
        EXPECT_EQ(difference("result", got, expected, bitwise), std::nullopt);
    }
    EXPECT_EQ(taken, 4);
}

/// The tiles that the model chooses.
TEST(HaloTiles, OfLayersCanBeBuiltWithoutSpilling) {
    for (const char* layer :
         {"256x56x56x64_64_3x3_pad1", "64x56x56x64_64_3x3_pad1", "128x28x30x32_64_3x3_pad1",
          "32x112x112x16_32_5x5_pad2", "64x56x56x64_64_3x3_pad1", "256x28x28x128_128_3x3_pad1_tilehalo256b32s2t1w2r4",
          "256x14x14x256_256_3x3_pad1_tilehalo256b32s2t2w1r6"})
        for (const char* pass : {"", "_data_gradient", "_weight_gradient"}) {
            const bool is_56 = std::string(layer).find("x56x56x64_64_3x3_pad1") != std::string::npos;
            if (std::string(pass) == "_weight_gradient" && !is_56) continue;
            const std::string name = std::string("convolution") + pass + "_bf16_" + layer;
            const Program program = build(find_kernel(name)->make(target("sm_90a")));
            EXPECT_THAT(program.explain(), HasSubstr("pixels (im2col) of")) << name;
            EXPECT_THAT(program.cuda(), HasSubstr("raster_shared")) << name;
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

/// Where operands are so many that their arrival does not bind, taps come one by one.
TEST(HaloTiles, AreChosenForFewChannelsAndFilters) {
    auto chosen = [](const char* layer) {
        const auto named = parse_convolution(std::string("convolution_") + layer);
        EXPECT_TRUE(named) << layer;
        const Target h200 = target("sm_90a");
        const Convolution c = declare_convolution(named->shape, named->pass);
        const ConvolutionForm form = product_of(c).form;
        const double tapwise = convolution_cycles(form, convolution_tiles(form, h200).value(), h200);
        return halo_tiles(named->shape, named->pass, tapwise, h200);
    };
    EXPECT_EQ(chosen("bf16_256x56x56x64_64_3x3_pad1"), (HaloTiles{.places = 256, .leaving = 32}));
    for (const char* layer :
         {"bf16_256x56x56x64_64_3x3_stride2_pad1", "bf16_128x56x56x128_128_3x3_pad1", "bf16_256x56x56x64_64_1x1",
          "bf16_64x56x56x64_60_3x3_pad1", "bf16_2x8x900x64_64_3x3_pad1", "bf16_8x56x56x64_64_3x3_pad3"})
        EXPECT_FALSE(chosen(layer)) << layer;
    const auto sums_places = chosen("weight_gradient_bf16_256x56x56x64_64_3x3_pad1");
    ASSERT_TRUE(sums_places);
    EXPECT_EQ(sums_places->parts, 132);
    EXPECT_FALSE(chosen("weight_gradient_bf16_32x112x112x16_32_5x5_pad2"));  // five rows of taps
}

TEST(HaloTiles, AreNamed) {
    const auto named = parse_convolution("convolution_data_gradient_f16_2x9x8x16_32_3x2_pad1_tilehalo96b48s3t1");
    ASSERT_TRUE(named);
    EXPECT_EQ(named->halo, (HaloTiles{.places = 96, .leaving = 48, .stages = 3, .ping_pong = 1}));
    EXPECT_FALSE(named->tiles);
    EXPECT_FALSE(parse_convolution("convolution_bf16_2x9x8x16_32_3x2_pad1_tilehalo96"));
    const auto sums_places = parse_convolution("convolution_weight_gradient_f16_2x9x8x16_32_3x2_pad1_tilehalo96s3p5");
    ASSERT_TRUE(sums_places);
    EXPECT_EQ(sums_places->halo, (HaloTiles{.places = 96, .leaving = 0, .stages = 3, .ping_pong = 1, .parts = 5}));
    EXPECT_FALSE(parse_convolution("convolution_f16_2x9x8x16_32_3x2_pad1_tilehalo96s3p5"));
    EXPECT_FALSE(parse_convolution("convolution_weight_gradient_f16_2x9x8x16_32_3x2_pad1_tilehalo96s3p0"));
    EXPECT_FALSE(parse_convolution("convolution_f16_2x9x8x16_32_3x2_pad1_tilehalo0b48s3t1"));
    EXPECT_FALSE(parse_convolution("convolution_weight_gradient_f16_2x9x8x16_32_3x2_pad1_tilehalo96b48s3t1"));
}

/// What is made twice is counted, so that shared memory holds what is taken.
TEST(HaloTiles, ThatAreTakenCanBeBuilt) {
    const Target h100 = target("sm_90a");
    int taken = 0, refused = 0;
    for (int64_t channels : {64, 128})
        for (int64_t places : {128, 192, 256})
            for (int weight_stages : {2, 6}) {
                const HaloTiles tiles{
                    .places = places, .ping_pong = 1, .warpgroups = 2, .weight_stages = weight_stages};
                const FusedConvolutionShape shape{.convolution = {.images = 64,
                                                                  .height = 28,
                                                                  .width = 28,
                                                                  .channels = channels,
                                                                  .filters = 128,
                                                                  .kernel_h = 3,
                                                                  .kernel_w = 3,
                                                                  .padding = 1},
                                                  .prologue = true};
                const bool takes =
                    takes_halo(shape.convolution, ConvolutionPass::Forward, tiles, h100, {.image = true});
                (takes ? taken : refused) += 1;
                const Schedule s = fused_halo_schedule(declare_fused_halo(shape, places), tiles, h100);
                if (takes) {
                    EXPECT_NO_THROW(build(s)) << channels << " " << places << " " << weight_stages;
                }
            }
    EXPECT_GT(taken, 6);
    EXPECT_GT(refused, 1);
}

TEST(HaloConvolution, IsRefusedWhereTapsAreNoDistances) {
    const ConvolutionShape shape{
        .images = 2, .height = 9, .width = 9, .channels = 16, .filters = 16, .kernel_h = 3, .kernel_w = 3, .stride = 2};
    EXPECT_ERROR(declare_halo_convolution(shape, ConvolutionPass::Forward, 256),
                 "takes a stride of 1, one group, more than one tap");
    ConvolutionShape one = shape;
    one.stride = 1;
    EXPECT_ERROR(declare_halo_convolution(one, ConvolutionPass::Forward, 0), "tiles of 0 places; there must be some");
    EXPECT_ERROR(declare_halo_convolution(one, ConvolutionPass::WeightGradient, 128, {.zeros_beside = true}),
                 "nothing stands around a weight gradient; compute it from the result instead");
}

/// What boxes bring for all tiles of a block, weights included, beside tiles of pixels for each tap.
TEST(HaloTiles, BringASixthOfTheBytes) {
    Target two_blocks = target("sm_90a");
    two_blocks.multiprocessors = 2;
    auto bytes_of = [&](const char* form) {
        const std::string name = std::string("convolution_bf16_2x40x41x64_64_3x3_pad1") + form;
        const auto device = open_device("emulated:sm_90a");
        as_emulated(*device).set_options({.statistics = true});
        const Schedule s = find_kernel(name)->make(two_blocks);
        Executable executable(build(s), device);
        run_on(executable, whole_numbers(s.outputs(), 3));
        return as_emulated(*device).statistics().box_bytes;
    };
    const uint64_t halo = bytes_of("_tilehalo256b32s2t2"), taps = bytes_of("_tile256x64x64w2s4p1t1");
    EXPECT_GT(halo, 0u);
    EXPECT_LE(6 * halo, taps) << halo << " bytes";
}

}  // namespace
}  // namespace tw::schedules

// Mutations of convolutions: corners, steps, pixels and offsets of walks over pixels, sides of boxes, bytes, phases,
// masks of what is padding. Each is caught, or provably changes nothing. Blocks have several tiles, rings turn.
#include <gtest/gtest.h>

#include "tests/verify/expect_all_caught.h"
#include "verify/catalog_trial.h"
#include "verify/prove_equivalent.h"

namespace tw::fuzz {
namespace {

/// TW_FUZZ_WINDOW_MUTATIONS sets their number for each kernel (0: all).
constexpr const char* forward = "convolution_bf16_5x9x10x16_16_3x2_stride2_pad1_tile64x32x32w1s2p1t1";

/// Pixels are two apart: a corner one further adds none.
TEST(FuzzWindowMutations, WalksAreTheSameThatReadTheSamePixels) {
    CatalogTrial trial(*schedules::find_kernel(forward));
    const codegen::ThreadKernel& kernel = trial.kernels().back();
    EquivalenceProver prover(kernel, trial.sizes());
    auto is_same = [&](int64_t further) {
        codegen::ThreadKernel other = kernel;
        for (codegen::TensorMapUse& use : other.maps)
            if (use.im2col) use.im2col->upper[0] += further;
        return prover.compare(other).outcome == Comparison::Outcome::Same;
    };
    EXPECT_TRUE(is_same(0));
    EXPECT_TRUE(is_same(1));
    EXPECT_FALSE(is_same(2));
    EXPECT_FALSE(is_same(-1));
}

MutationOptions options_of(const std::string& name) {
    MutationOptions options;
    options.programs = {*schedules::find_kernel(name)};
    options.count = number_from_environment("TW_FUZZ_WINDOW_MUTATIONS", 56);
    options.kinds = {MutationKind::Signal, MutationKind::Operand, MutationKind::Role, MutationKind::Mask};
    options.original_seeds = 2;
    return options;
}

TEST(FuzzWindowMutations, OfTheForwardPass) { expect_all_caught(options_of(forward)); }

TEST(FuzzWindowMutations, OfTheDataGradientWithPhases) {
    expect_all_caught(options_of("convolution_data_gradient_bf16_3x9x10x32_64_3x3_stride2_pad1_tile64x32x32w1s2p1t1"));
}

TEST(FuzzWindowMutations, OfTheWeightGradient) {
    expect_all_caught(options_of("convolution_weight_gradient_bf16_2x9x6x64_64_3x2_pad1_tile64x64x32w1s2p1t1"));
}

/// Of one step a tile: of the products, one group at most is on its way at the end, and waiting for all but one changes
/// nothing in front of the wait for all, though no trace tells.
TEST(FuzzWindowMutations, OfTilesWithTheirHalo) {
    expect_all_caught(options_of("convolution_bf16_2x9x10x16_16_3x2_pad1_tilehalo48b16s2t1"),
                      {"wgmma_wait<1>()", "wgmma_wait<1>()"});
}

/// Of three pieces of channels, whose products run on from one to the next.
TEST(FuzzWindowMutations, OfTilesWithTheirHaloTapByTap) {
    expect_all_caught(options_of("convolution_bf16_3x6x7x136_64_3x2_pad1_tilehalo48b16s2t1w1r3"));
}

/// The same, each of which is made while two products of the last one run.
TEST(FuzzWindowMutations, OfTilesWhoseHaloIsMade) {
    expect_all_caught(options_of("convolution_fused_bf16_3x6x7x136_64_3x2_pad1_tilehalo48b16s2t1w1r4_prologue"));
}

}  // namespace
}  // namespace tw::fuzz

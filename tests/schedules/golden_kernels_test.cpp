// Printed kernels of the public schedules, whole, as reviewers read them: a change in codegen is a change of these
// files. TW_UPDATE_GOLDEN=1 writes them anew.
#include <gtest/gtest.h>

#include "ops/program.h"
#include "schedules/catalog.h"
#include "tests/support/golden.h"

namespace tw {
namespace {

struct GoldenKernel {
    const char* file;
    const char* name;  ///< a kernel of the catalogue; tilings are named, so that tuned records do not matter
    const char* arch = "sm_90a";
};

const GoldenKernel golden_kernels[] = {
    {"gemm_cooperative", "gemm_bf16_1024x1024x512_tb_tile128x256x64g2c2s4r64b"},
    {"gemm_ping_pong", "gemm_bf16_1024x1024x512_tb_tile128x192x64g1c2u2s4r64b"},
    {"gemm_mma_sync", "gemm_bf16_256x192x128_tb_tile128x128x32w64x64s3", "sm_80"},
    {"gemm_swiglu", "gemm_bf16_200x384x136_tb_swiglu_tile128x192x64g2s3r"},
    {"softmax", "softmax_4096x4096_bf16"},
    {"layernorm", "layernorm_4096x4096_bf16"},
    {"column_sum", "column_sum_4096x1024_bf16"},
    {"scatter_by_atomics", "embedding_gradient_atomic_50x9x64_bf16"},
    {"scatter_by_lists", "embedding_gradient_60x500x64_bf16"},
    {"convolution_halo", "convolution_bf16_64x28x30x64_64_3x3_pad1_tilehalo256b32s2t2"},
    {"convolution_per_tap", "convolution_bf16_64x28x28x128_128_3x3_pad1_tile128x128x64w2s4p1t1b64"},
    {"convolution_data_gradient", "convolution_data_gradient_bf16_64x28x28x128_128_3x3_pad1_tile192x128x64w3s4p1t1b64"},
    {"convolution_weight_gradient",
     "convolution_weight_gradient_bf16_64x28x28x128_128_3x3_pad1_tile128x128x64w2s4p8t1"},
    {"depthwise", "depthwise_bf16_64x56x56x96_7x7_pad3_tile4x7t2x4x16s7r7"},
};

TEST(GoldenKernels, AreWhatReviewersHaveRead) {
    for (const GoldenKernel& golden : golden_kernels) {
        const schedules::CatalogEntry* entry = schedules::find_library_kernel(golden.name);
        ASSERT_TRUE(entry) << golden.name;
        const Program program = build(entry->make(target(golden.arch)));
        EXPECT_TRUE(matches_golden(program.cuda(), std::string("kernels/") + golden.file + ".cu"));
    }
}

}  // namespace
}  // namespace tw

// Files of cases for `tw tune`.
#include "tools/tune_names.h"

#include <fstream>

#include "tests/support/expect_error.h"

namespace tw {
namespace {

class Cases : public testing::Test {
protected:
    std::vector<std::string> kernels(const std::string& text) const {
        std::ofstream(path_) << text;
        return kernels_of_cases(path_);
    }
    void TearDown() override { std::remove(path_.c_str()); }

    std::string path_ = testing::TempDir() + "tune_cases.jsonl";
};

TEST_F(Cases, BothFormsGiveNames) {
    EXPECT_EQ(kernels("{\"kernel\": \"gemm_bf16_1x2x3\"}\n\n"
                      "{\"m\": 4, \"n\": 5, \"k\": 6, \"transpose_b\": true}\n"
                      "{\"m\": 4, \"n\": 5, \"k\": 6, \"type\": \"f16\", \"batch\": 3, \"transpose_a\": true, "
                      "\"epilogue\": \"bias_gelu\", \"result\": \"f32\"}"),
              (std::vector<std::string>{"gemm_bf16_1x2x3", "gemm_bf16_4x5x6_tb", "gemm_f16_3x4x5x6_ta_bias_gelu_f32"}));
    EXPECT_EQ(kernels_of_cases("bench/cases/gemm.jsonl")[0], "gemm_bf16_512x512x512_tb");
}

/// One pass, or all three.
TEST_F(Cases, OfConvolutionsAreLayers) {
    EXPECT_EQ(
        kernels("{\"images\": 2, \"height\": 9, \"width\": 8, \"channels\": 16, \"filters\": 32, \"kernel_h\": 3, "
                "\"kernel_w\": 2, \"stride\": 2, \"pad\": 1, \"dilation\": 3, \"groups\": 4, \"layout\": \"nchw\", "
                "\"type\": \"f16\", "
                "\"pass\": \"data\"}"),
        (std::vector<std::string>{
            "convolution_data_gradient_f16_2x9x8x16_32_3x2_stride2_pad1_dilation3_groups4_nchw"}));
    const std::vector<std::string> all = kernels_of_cases("bench/cases/conv.jsonl");
    EXPECT_EQ(all.size(), 45u);
    EXPECT_EQ(all[0], "convolution_bf16_256x224x224x3_64_7x7_stride2_pad3");
    EXPECT_EQ(all[1], "convolution_data_gradient_bf16_256x224x224x3_64_7x7_stride2_pad3");
    EXPECT_EQ(all[2], "convolution_weight_gradient_bf16_256x224x224x3_64_7x7_stride2_pad3");
}

TEST_F(Cases, ErrorsNameTheLine) {
    EXPECT_ERROR(kernels("\n{\"m\": 4, \"n\": 5}"), "tune_cases.jsonl:2: no case of a product or a convolution");
    EXPECT_ERROR(kernels("{\"m\": 4"), "write {\"kernel\": NAME}, or m, n and k");
    EXPECT_ERROR(kernels_of_cases("/nonexistent"), "cannot read the cases in /nonexistent");
}

}  // namespace
}  // namespace tw

// The suite of odd shapes, bench/cases/conv-odd.jsonl: each pass of each can be built, and is right on images, channels
// and filters of fewer, with the same remainders.
#include <fstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "runtime/compile/compile.h"
#include "schedules/catalog.h"
#include "schedules/convolution.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/schedules/plain_convolution.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

std::vector<std::pair<std::string, ConvolutionShape>> cases() {
    std::vector<std::pair<std::string, ConvolutionShape>> found;
    std::ifstream file("bench/cases/conv-odd.jsonl");
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json json = nlohmann::json::parse(line);
        auto read = [&](const char* key, int64_t otherwise) { return json.value(key, otherwise); };
        found.emplace_back(line, ConvolutionShape{.images = json.at("images"),
                                                  .height = json.at("height"),
                                                  .width = json.at("width"),
                                                  .channels = json.at("channels"),
                                                  .filters = json.at("filters"),
                                                  .kernel_h = json.at("kernel_h"),
                                                  .kernel_w = json.at("kernel_w"),
                                                  .stride = read("stride", 1),
                                                  .padding = read("pad", 0),
                                                  .dilation = read("dilation", 1),
                                                  .groups = read("groups", 1)});
    }
    return found;
}

/// Of a group: as many channels or filters beyond whole units of 16.
int64_t fewer(int64_t all, int64_t groups) {
    const int64_t each = all / groups;
    return groups * (each > 32 ? 16 + each % 16 : each);
}

ConvolutionShape reduced(ConvolutionShape s) {
    auto side = [&](int64_t extent, int64_t taps) {
        const int64_t least = (taps - 1) * s.dilation + 1 - 2 * s.padding;
        return std::min(extent, std::max<int64_t>(least, s.stride + 2));
    };
    s.images = std::min<int64_t>(s.images, 2);
    s.height = side(s.height, s.kernel_h), s.width = side(s.width, s.kernel_w);
    s.channels = fewer(s.channels, s.groups), s.filters = fewer(s.filters, s.groups);
    return s;
}

TEST(OddConvolutions, AreThirtyThatCanBeBuilt) {
    const auto all = cases();
    EXPECT_EQ(all.size(), 30u);
    for (const auto& [line, shape] : all)
        for (ConvolutionPass pass : passes) {
            SCOPED_TRACE(line);
            const Schedule s = convolution_schedule({.shape = shape, .pass = pass}, target("sm_90a"));
            EXPECT_THAT(build(s).explain(), HasSubstr("_shared: by the tensor memory accelerator"));
        }
}

/// Rows of an odd number of elements leave one by one; ptxas does not round them while they are summed.
TEST(OddConvolutions, AreNotSerialized) {
    for (const char* name : {"convolution_bf16_128x56x56x64_7_3x3_pad1", "convolution_f16_128x56x56x64_15_3x3_pad1",
                             "convolution_data_gradient_bf16_64x64x64x7_64_5x5_pad2",
                             "convolution_bf16_128x56x56x64_9_3x3_pad1_tile256x16x64w2s3p1t1"}) {
        SCOPED_TRACE(name);
        for (const auto& kernel : build(find_kernel(name)->make(target("sm_90a"))).kernels()) try {
                compile_kernel({.source = kernel.cuda, .name = kernel.name + ".cu", .arch = "sm_90a", .options = {}});
            } catch (const NvrtcMissing&) {
                GTEST_SKIP() << "no NVRTC to compile with";
            }
    }
}

class FewerOddConvolutions : public RandomCases {
protected:
    FewerOddConvolutions() : RandomCases(30) {}
};
TW_ON_EACH_DEVICE(FewerOddConvolutions);

TEST_P(FewerOddConvolutions, AreTheDeclared) {
    for (const auto& [line, shape] : cases())
        for (ConvolutionPass pass : passes) {
            SCOPED_TRACE(line);
            const ConvolutionShape fewer = reduced(shape);
            const Schedule s = convolution_schedule({.shape = fewer, .pass = pass}, device_target());
            const auto seed = static_cast<unsigned>(between(0, 1000));
            expect_declared(s, whole_numbers(s.outputs(), seed));
            if (fewer.flops() < 1e6) expect_plain(declare_convolution(fewer, pass).result, fewer, pass, seed);
        }
}

/// Masks that only several bounds together show to be a tensor's end, images of so many elements that no table has a
/// place for each, a single tap of pixels in rows of two, and parts of unequal length.
TEST(NamedConvolutions, AreTiledAsTheModelSays) {
    for (const char* name : {"convolution_data_gradient_bf16_6x1x9x512_256_3x3_stride3_pad1",
                             "convolution_data_gradient_bf16_217x1x1x256_952_3x7_pad3",
                             "convolution_data_gradient_bf16_2x32x32x1024_624_3x3_stride3_pad0",
                             "convolution_data_gradient_bf16_10x64x18x1024_512_3x3_stride3_pad1",
                             "convolution_data_gradient_bf16_121x2x2x1024_2048_3x3_pad2_dilation2",
                             "convolution_data_gradient_bf16_9x2x2x608_536_3x3_pad2_dilation2_groups8",
                             "convolution_data_gradient_bf16_147x2x2x512_1240_3x3_pad4_dilation4_groups4",
                             "depthwise_bf16_1x165x165x1224_5x5_pad2", "depthwise_bf16_1x229x229x1230_3x3_pad1",
                             "depthwise_data_gradient_bf16_1x215x215x920_7x7_pad0",
                             "depthwise_weight_gradient_bf16_8x16x17x16_9x9_stride2_pad0"}) {
        SCOPED_TRACE(name);
        const Program built = build(find_library_kernel(name)->make(target("sm_90a")));
        EXPECT_THAT(built.explain(), Not(HasSubstr("cannot be built: ")));
        EXPECT_THAT(built.explain(), HasSubstr("_shared: by the tensor memory accelerator"));
    }
}

/// What has no tiling at all is chosen as for any computation; tiles that were asked for are refused.
TEST(NamedConvolutions, NeverRefuse) {
    for (const char* name :
         {"convolution_bf16_3x82x1x256_624_3x1_stride2_pad1", "depthwise_bf16_2x8x1x16_3x1_stride2_pad1"}) {
        SCOPED_TRACE(name);
        EXPECT_NO_THROW(build(find_library_kernel(name)->make(target("sm_90a"))));
    }
    const std::string tiled = "convolution_data_gradient_bf16_6x1x9x512_256_3x3_stride3_pad1_tile64x512x64w1s8p1t1";
    EXPECT_THROW(build(find_library_kernel(tiled)->make(target("sm_90a"))), Error);
}

class FewPixels : public RandomCases {
protected:
    FewPixels() : RandomCases(3) {}
};
TW_ON_EACH_DEVICE(FewPixels);

/// Convolutions as networks declare them, whatever their own declarations copy, pad and join.
TEST_P(FewPixels, NamedConvolutionsAreTheDeclared) {
    for (const char* name : {"convolution_data_gradient_bf16_2x1x9x32_16_3x3_stride3_pad1",
                             "convolution_data_gradient_bf16_1x11x11x32_24_3x3_stride3",
                             "convolution_data_gradient_bf16_5x2x2x32_24_3x3_pad2_dilation2",
                             "convolution_data_gradient_bf16_5x2x2x64_72_3x3_pad4_dilation4_groups4",
                             "convolution_data_gradient_bf16_1x4x4x24_128_3x3_stride3_pad1_tile64x16x64w1s4p2t1",
                             "convolution_data_gradient_bf16_1x6x6x24_136_3x3_stride2_pad1_tile64x32x64w1s4p3t1",
                             "convolution_data_gradient_bf16_20x1x1x32_184_3x7_pad3_tile64x32x64w1s4p2t1",
                             "depthwise_weight_gradient_bf16_2x16x17x16_9x9_stride2_pad0"}) {
        SCOPED_TRACE(name);
        const Schedule s = find_library_kernel(name)->make(device_target());
        if (s.target().has_wgmma) {
            EXPECT_THAT(s.explain(), Not(HasSubstr("cannot be built: ")));
        }
        const auto named = parse_convolution(name);
        Executable executable(build(s), device_);
        expect_declared(executable, named ? std::vector{plain_convolution(named->shape, named->pass)} : s.outputs(),
                        whole_numbers(s.outputs(), 3));
    }
}

}  // namespace
}  // namespace tw::schedules

// Names of kernels: what they ask for, and which are none.
#include <gmock/gmock.h>

#include <regex>
#include <set>
#include <sstream>

#include "ops/program.h"
#include "schedules/catalog.h"
#include "schedules/families.h"
#include "schedules/name_forms.h"
#include "schedules/tensor_product_names.h"

namespace tw::schedules {
namespace {

const Family& family(const std::string& name) {
    for (const Family& candidate : families())
        if (candidate.name == name) return candidate;
    throw std::runtime_error("no family " + name);
}

TEST(Catalog, NamesAreUniqueAndFound) {
    std::set<std::string> seen;
    for (const CatalogEntry& entry : catalog()) {
        EXPECT_TRUE(seen.insert(entry.name).second) << entry.name;
        ASSERT_NE(find_kernel(entry.name), nullptr) << entry.name;
        EXPECT_EQ(find_kernel(entry.name)->name, entry.name);
    }
}

TEST(Catalog, NamesGiveExtentsTypeAndPitch) {
    auto request = parse_request(family("softmax"), "softmax_16384x8192_bf16_pitch8200");
    ASSERT_TRUE(request);
    EXPECT_EQ(request->extents, (std::vector<int64_t>{16384, 8192}));
    EXPECT_EQ(request->type, bf16);
    EXPECT_EQ(request->pitch, 8200);
    Schedule s = find_kernel("softmax_6x10_f16_pitch12")->make(target("sm_90a"));
    EXPECT_EQ(s.outputs()[0].type(), f16);
}

TEST(Catalog, EveryFamilyIsInTheList) {
    for (const Family& candidate : families()) {
        auto is_one = [&](const CatalogEntry& entry) { return parse_request(candidate, entry.name).has_value(); };
        EXPECT_TRUE(std::any_of(catalog().begin(), catalog().end(), is_one)) << candidate.name;
    }
}

// What the message about a name says is true of the names that it shows.
TEST(NameForms, HaveExamplesThatAreNames) {
    for (const NameForm& each : name_forms()) {
        EXPECT_TRUE(each.example.starts_with(each.begin)) << each.begin;
        EXPECT_NE(find_library_kernel(each.example), nullptr) << each.example;
    }
    for (const Family& family : families()) EXPECT_THAT(form_of(family.name + "_5"), testing::HasSubstr(family.name));
}

TEST(NameForms, AreThoseOfTheLongestBeginning) {
    using testing::HasSubstr;
    EXPECT_EQ(form_of("levitate_3x4"), "");
    EXPECT_THAT(form_of("product_3x5x7_tile32x32x8t3x4s2"), HasSubstr("a thread's divide the block's"));
    EXPECT_THAT(form_of("attention_varlen_gradients_bf16_9"), HasSubstr("_tile128x64q128x64s2"));
    EXPECT_THAT(form_of("convolution_bf16_2x2x2x64_64_5x5"), HasSubstr("fits into the padded image"));
    EXPECT_THAT(form_of("softmax_3x4_i8"), HasSubstr("softmax_AxB_TYPE of f32, bf16 or f16"));
}

TEST(Catalog, BytesCountEachOperandOnce) {
    EXPECT_EQ(find_kernel("softmax_100x200_bf16")->bytes, 2 * 100 * 200 * 2);
    EXPECT_EQ(find_kernel("adamw_1000_f32")->bytes, 28 * 1000);
    EXPECT_EQ(find_kernel("dot_500_f32")->bytes, 2 * 500 * 4);
}

TEST(Catalog, NamesOfProductsOnMatrixUnits) {
    auto named = parse_tensor_product("gemm_bf16_3x64x48x32_ta_tb_bias_gelu_f32_pad_tile32x16x64w16x8s5p2r");
    ASSERT_TRUE(named);
    const TensorProductShape& shape = named->shape;
    EXPECT_EQ((std::array{shape.batch, shape.m, shape.n, shape.k}), (std::array<int64_t, 4>{3, 64, 48, 32}));
    EXPECT_TRUE(shape.transpose_a && shape.transpose_b && shape.add_bias &&
                shape.activation == schedules::Activation::Gelu && shape.copy_operands);
    EXPECT_EQ(shape.operand, bf16);
    EXPECT_EQ(shape.result, f32);
    const auto& tiles = std::get<TensorTiles>(named->tiling.value());
    EXPECT_EQ((std::array{tiles.block_m, tiles.block_n, tiles.block_k, tiles.warp_m, tiles.warp_n, tiles.split_k}),
              (std::array<int64_t, 6>{32, 16, 64, 16, 8, 2}));
    EXPECT_EQ(tiles.stages, 5);
    EXPECT_TRUE(tiles.stage_result);
    auto swapped = parse_tensor_product("gemm_bf16_16x8192x8192_tb_tile16x64x128g1s8p2t");
    const auto& warpgroup_tiles = std::get<WarpgroupTiles>(swapped.value().tiling.value());
    EXPECT_EQ((std::array{warpgroup_tiles.block_m, warpgroup_tiles.block_n, warpgroup_tiles.block_k,
                          warpgroup_tiles.split_k}),
              (std::array<int64_t, 4>{16, 64, 128, 2}));
    EXPECT_EQ((std::array{warpgroup_tiles.warpgroups, warpgroup_tiles.stages}), (std::array{1, 8}));
    EXPECT_TRUE(warpgroup_tiles.swap && !warpgroup_tiles.stage_result);
    EXPECT_FALSE(parse_tensor_product("gemm_bf16_16x8192x8192_tb_tile16x16x16w16x8s3t"));
    EXPECT_FALSE(parse_tensor_product("gemm_bf16_16x8192x8192_tb")->tiling);
    EXPECT_TRUE(parse_tensor_product("gemm_bf16_4095x4097x4093_tb")->shape.copy_operands);
    EXPECT_FALSE(parse_tensor_product("gemm_bf16_1000x1000x1000_tb")->shape.copy_operands);
    EXPECT_FALSE(parse_tensor_product("gemm_bf16_5x4097x4093_tb")->shape.copy_operands);
    EXPECT_EQ(parse_tensor_product("gemm_tf32_5x6x7")->shape.result, f32);
    EXPECT_EQ(parse_tensor_product("gemm_i8_5x6x7")->shape.result, i32);
    EXPECT_EQ(parse_tensor_product("gemm_e4m3_5x6x7_tb")->shape.result, bf16);
    EXPECT_EQ(find_kernel("gemm_f16_100x200x300_tb")->bytes, 2 * (100 * 300 + 200 * 300 + 100 * 200));
    EXPECT_EQ(find_kernel("gemm_tf32_100x200x300_ta")->bytes, 4 * (100 * 300 + 200 * 300 + 100 * 200));
    EXPECT_EQ(find_kernel("gemm_bf16_7x100x200x300")->flops, 2.0 * 7 * 100 * 200 * 300);
}

/// What people read has lines that fit, and no loops, arrays or names that only codegen needs.
TEST(Catalog, KernelsReadWell) {
    const std::regex once(R"(< 1; \+\+)"), alias(R"(^ *const int \w+ = [a-z]\w*;$)"), single(R"(^ *[\w:]+ \w+\[1\];$)");
    for (const CatalogEntry& entry : catalog())
        for (const codegen::KernelText& kernel : build(entry.make(target("sm_90a"))).kernels()) {
            std::istringstream lines(kernel.cuda.substr(kernel.cuda.find("\nextern \"C\"")));
            for (std::string line; std::getline(lines, line);) {
                EXPECT_LE(line.size(), 120u) << entry.name << ": " << line;
                EXPECT_FALSE(std::regex_search(line, once)) << entry.name << ": " << line;
                EXPECT_FALSE(std::regex_search(line, alias)) << entry.name << ": " << line;
                EXPECT_FALSE(std::regex_search(line, single)) << entry.name << ": " << line;
            }
        }
}

TEST(Catalog, OtherNamesAreNone) {
    for (const char* name : {"",
                             "softmax",
                             "softmax_",
                             "softmax_5x4",
                             "softmax_5_f32",
                             "softmax_5x4x3_f32",
                             "softmax_5x4_f64",
                             "softmax_-5x4_f32",
                             "softmax_5x4_f32_",
                             "softmax_5x4_f32_pitch3",
                             "softmax_5x4_f32x",
                             "adamw_10_bf16",
                             "dot_10_f32_pitch10",
                             "softmax_5x99999999999999999999_f32",
                             "softmx_5x4_f32",
                             "embedding_5x4_f32",
                             "full_sum_5x4_f32",
                             "product_5x4",
                             "product_5x4x1234567",
                             "gemm_f32_4x4x4",
                             "gemm_bf16_4x4",
                             "gemm_bf16_4x4x4_tb_ta",
                             "gemm_i8_4x4x4_bias",
                             "gemm_bf16_4x4x4_tile16x16x16w16x16"})
        EXPECT_EQ(find_kernel(name), nullptr) << name;
}

}  // namespace
}  // namespace tw::schedules

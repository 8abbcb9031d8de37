// Attention by name: what names ask for, and results of shapes that people have.
#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/program.h"
#include "schedules/attention.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

TEST(AttentionNames, GiveShapeAndTiles) {
    const auto named = parse_attention("attention_f16_2x12x300x40_keys500_width24_group3_causal_tile64x32s3npqrh4");
    ASSERT_TRUE(named);
    const AttentionShape& shape = named->shape;
    EXPECT_EQ((std::array{shape.batch, shape.heads, shape.rows, shape.keys, shape.depth, shape.width, shape.group}),
              (std::array<int64_t, 7>{2, 12, 300, 500, 40, 24, 3}));
    EXPECT_TRUE(shape.causal && shape.type == f16);
    const AttentionTiles& tiles = named->tiles.value();
    EXPECT_EQ((std::array{tiles.rows, tiles.keys, tiles.heads}), (std::array<int64_t, 3>{64, 32, 4}));
    EXPECT_EQ(tiles.stages, 3);
    EXPECT_TRUE(!tiles.overlaps && tiles.persistent && tiles.query_stages == 2 && tiles.stage_result);
    EXPECT_FALSE(tiles.dynamic);
    EXPECT_TRUE(parse_attention("attention_bf16_1x2x300x64_causal_tile64x64s2pqrh2d")->tiles->dynamic);
    EXPECT_TRUE(parse_attention("attention_bf16_1x2x300x64_tile64x64s2z")->tiles->lazy);
    EXPECT_TRUE(parse_attention("attention_bf16_1x2x300x64_tile128x64s2ze")->tiles->exclusive);
    const auto at_the_end = parse_attention("attention_bf16_1x2x300x64_keys200_causal_lower_right_heads_first_alibi");
    ASSERT_TRUE(at_the_end);
    EXPECT_TRUE(at_the_end->shape.causal && at_the_end->shape.heads_first && at_the_end->shape.has_empty_rows());
    EXPECT_EQ(at_the_end->shape.keys_before, -100);
    EXPECT_EQ(at_the_end->rules, "_alibi");
    EXPECT_EQ(at_the_end->shape.flops(), 4.0 * 2 * (200 * 200 / 2) * 64);
    EXPECT_EQ(parse_attention("attention_bf16_1x2x100x64_keys300_causal_lower_right")->shape.flops(),
              4.0 * 2 * (100 * 100 / 2 + 100 * 200) * 64);
    const auto plain = parse_attention("attention_bf16_1x2x300x64");
    ASSERT_TRUE(plain);
    EXPECT_EQ(plain->shape.keys, 300);
    EXPECT_EQ(plain->shape.width, 64);
    EXPECT_FALSE(plain->tiles);
    EXPECT_EQ(find_kernel("attention_bf16_1x2x300x64")->flops, 4.0 * 2 * 300 * 300 * 64);
    EXPECT_EQ(find_kernel("attention_bf16_1x2x300x64_causal")->flops, 2.0 * 2 * 300 * 300 * 64);
    EXPECT_EQ(find_kernel("attention_bf16_1x4x300x64_group4")->bytes, 2 * (4 + 1 + 1 + 4) * 300 * 64 + 4 * 4 * 300);
}

TEST(AttentionNames, GiveRulesOfScores) {
    const auto named = parse_attention("attention_bf16_2x4x100x64_causal_softcap30_alibi_documents_tile64x64s2");
    ASSERT_TRUE(named);
    EXPECT_EQ(named->rules, "_softcap30_alibi_documents");
    const std::string text =
        build(find_kernel("attention_bf16_2x4x100x64_causal_softcap30_alibi_documents")->make(tw::target("sm_90a")))
            .cuda();
    for (const char* part : {"sigmoid(", "slopes[", "documents[", "q <= p"})
        EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_TRUE(parse_attention("attention_bf16_2x4x100x64_window16_bias"));
    EXPECT_TRUE(rules_of(*parse_attention("attention_bf16_2x4x100x64_window16")).skips);
    EXPECT_FALSE(rules_of(*parse_attention("attention_bf16_2x4x100x64")).score);
    EXPECT_EQ(parse_attention("attention_bf16_2x4x100x64_softcap30_sinks_tile64x64s2")->rules, "_softcap30_sinks");
    EXPECT_FALSE(rules_of(*parse_attention("attention_bf16_2x4x100x64_sinks")).score);
    EXPECT_TRUE(rules_of(*parse_attention("attention_bf16_2x4x100x64_sinks")).sinks.defined());
    EXPECT_FALSE(parse_attention("attention_bf16_2x4x100x64_window"));
    EXPECT_FALSE(parse_attention("attention_bf16_2x4x100x64_cap30"));
}

TEST(AttentionNames, OthersAreNone) {
    for (const char* name : {"attention_bf16_1x2x300", "attention_f32_1x2x300x64", "attention_bf16_1x2x300x64_group3",
                             "attention_bf16_1x2x300x60", "attention_bf16_1x2x300x264", "attention_bf16_1x2x0x64",
                             "attention_bf16_1x2x300x64_tile100x64s2", "attention_bf16_1x2x300x64_tile256x64s2",
                             "attention_bf16_1x2x300x64_tile64x64s2h3", "attention_bf16_1x2x300x64_tile64x64s2e",
                             "attention_bf16_1x2x300x64_tile64x64s2d"})
        EXPECT_FALSE(parse_attention(name)) << name;
    EXPECT_ERROR(declare_attention({.batch = 1, .heads = 5, .rows = 8, .keys = 8, .depth = 8, .width = 8, .group = 2}),
                 "attention: 5 heads are no multiple of a group of 2");
}

/// Tiles for shapes that nobody tuned: all multiprocessors have work, and shared memory suffices.
TEST(AttentionTiling, SuitsAnyShape) {
    std::mt19937 random(7);
    auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    for (int round = 0; round < 24; ++round) {
        AttentionShape shape{.batch = between(1, 4),
                             .heads = 1 << between(0, 4),
                             .rows = between(1, 3000),
                             .keys = 0,
                             .depth = 8 * between(2, 32),
                             .width = 0,
                             .causal = between(0, 1) == 1};
        shape.keys = between(0, 1) ? shape.rows : between(1, 3000);
        if (shape.causal) shape.keys = shape.rows;
        shape.width = between(0, 1) ? shape.depth : int64_t{8} * between(2, 32);
        const Target target = tw::target("sm_90a");
        const AttentionTiles tiles = attention_tiles(shape, target);
        EXPECT_EQ(shape.heads % tiles.heads, 0);
        EXPECT_NO_THROW(build(attention_schedule(shape, tiles, target)))
            << shape.batch << " x " << shape.heads << " x " << shape.rows << " x " << shape.depth << ", keys "
            << shape.keys << ", width " << shape.width << (shape.causal ? ", causal" : "");
    }
}

/// Rows that do not exist are computed like the others: only what stores results asks for them, so that nothing in the
/// loop over keys does, and lanes store matrices to shared memory.
TEST(AttentionTiling, RowsThatEndInATileCostNothing) {
    const std::string name = "attention_bf16_1x2x500x64_keys256_tile128x64s2r";
    const std::string text = build(find_kernel(name)->make(target("sm_90a"))).cuda();
    EXPECT_NE(text.find("tw::stmatrix<4>"), std::string::npos) << text;
    size_t asked = 0;
    for (size_t at = text.find(" < 500"); at != std::string::npos; at = text.find(" < 500", at + 1)) ++asked;
    EXPECT_EQ(asked, 1U) << text;  // lse; boxes end where the tensor does
}

/// A causal row that exists sees no key behind the last one: nothing asks for keys in its maxima, sums and products.
TEST(AttentionTiling, CausalKeysThatEndInATileCostNothing) {
    for (const char* name : {"attention_bf16_1x2x500x64_causal_tile128x64s2",
                             "attention_bf16_1x2x500x64_causal_softcap9_documents_tile128x64s2"}) {
        const Program program = build(find_kernel(name)->make(target("sm_90a")));
        const std::string text = program.cuda(), explained = program.explain();
        size_t left_out = 0;
        for (size_t at = explained.find("selects leave terms out"); at != std::string::npos;
             at = explained.find("selects leave terms out", at + 1))
            ++left_out;
        EXPECT_EQ(left_out, 2U) << explained;  // m and l
        EXPECT_EQ(text.find("p_registers: zeros where not"), std::string::npos) << text;
        EXPECT_EQ(text.find(" < 250"), std::string::npos) << text;  // of pairs of keys
    }
}

/// Neither do tiles of rows that are no multiple of a step cost anything: a step that is masked is told by a quotient,
/// which traps nowhere, and how many there are by a minimum; the others ask for nothing.
TEST(AttentionTiling, CausalTilesThatEndInAStepCostNothing) {
    for (const char* tile : {"192x128s2lh2", "192x128s2pqrh2"}) {
        const Program program =
            build(find_kernel(fmt::format("attention_bf16_1x2x1000x64_causal_tile{}", tile))->make(target("sm_90a")));
        const std::string text = program.cuda();
        auto count = [&](const std::string& asked) {
            size_t found = 0;
            for (size_t at = text.find(asked); at != std::string::npos; at = text.find(asked, at + 1)) ++found;
            return found;
        };
        EXPECT_LE(count(" < 1000"), 2U) << text;              // of results
        EXPECT_EQ(count("const int threshold"), 2U) << text;  // in the first step, and in a loop
    }
}

/// What a user would write takes so many statements.
TEST(AttentionTiling, IsShort) {
    for (const char* name :
         {"attention_bf16_2x16x4096x64", "attention_bf16_2x16x4096x128", "attention_bf16_2x16x4096x128_causal",
          "attention_bf16_1x8x4096x256_causal", "attention_bf16_2x16x4096x128_bias"})
        EXPECT_LE(find_kernel(name)->make(tw::target("sm_90a")).trace().size(), 30U) << name;
}

class AttentionKernels : public RandomCases {
protected:
    AttentionKernels() : RandomCases(97) {}
};
TW_ON_EACH_DEVICE(AttentionKernels);

TEST_P(AttentionKernels, GiveTheDeclared) {
    for (const char* name :
         {"attention_bf16_1x2x192x64_causal_tile64x64s2pqrh2",
          "attention_f16_2x4x70x40_keys90_width24_group2_tile64x64s2n",
          "attention_f16_2x4x70x40_keys390_width24_group2_causal_tile64x64s2z",
          "attention_bf16_1x2x200x64_tile64x48s2pqr", "attention_bf16_1x48x192x64_causal_tile64x64s2pqrh2d",
          "attention_bf16_1x2x70x40_keys190_causal_lower_right", "attention_bf16_1x2x190x40_keys70_causal_lower_right",
          "attention_f16_2x4x130x64_keys100_group2_causal_lower_right_heads_first_sinks",
          "attention_bf16_2x4x150x72_group2_heads_first", "attention_bf16_1x2x200x64_causal_tile64x48s2",
          "attention_bf16_1x2x256x64_causal_tile128x64s2lr", "attention_bf16_2x1x128x128_keys256_tile128x64s3q",
          "attention_bf16_1x2x150x64_causal_sinks_tile64x64s2"}) {
        const Schedule s = find_kernel(name)->make(device_target());
        SCOPED_TRACE(name);
        expect_declared(s, random_bindings(s.outputs(), 3), near(64, 2e-2));
    }
}

}  // namespace
}  // namespace tw::schedules

// Attention of one row, its keys in parts: the same as the plain formula, of any shape.
#include "schedules/attention_decode.h"

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

class DecodeKernels : public RandomCases {
protected:
    DecodeKernels() : RandomCases(131) {}

    AttentionShape random_shape() {
        AttentionShape shape{.batch = between(1, 2),
                             .heads = between(1, 2),
                             .rows = 1,
                             .keys = between(1, 700),
                             .depth = 8 * between(1, 18),
                             .width = 8 * between(1, 18),
                             .group = chance() ? between(1, 8) : between(1, 70)};
        if (chance()) shape.type = f16;
        if (chance()) shape.keys = 64 * between(1, 10);
        shape.heads *= shape.group;
        return shape;
    }
};
TW_ON_EACH_DEVICE(DecodeKernels);

TEST_P(DecodeKernels, GiveThePlainFormula) {
    for (int round = 0; round < 10; ++round) {
        const AttentionShape shape = random_shape();
        DecodeTiles tiles = decode_tiles(shape, device_target());
        if (chance()) tiles.parts = between(1, 9);
        tiles.stages = between(2, 3);
        const Tensor sinks = chance() ? input("sinks", f32, {shape.heads}) : Tensor();
        SCOPED_TRACE(fmt::format("{} x {} heads, groups of {}, {} keys of {} in {} parts, width {}", shape.batch,
                                 shape.heads, shape.group, shape.keys, shape.depth, tiles.parts, shape.width));
        Executable executable(build(decode_schedule(shape, tiles, device_target(), {.sinks = sinks})), device_);
        const Attention plain = declare_attention(shape, {}, false, {}, sinks);
        const std::vector<Tensor> outputs = {plain.o, plain.lse};
        expect_declared(executable, outputs, random_bindings(outputs, static_cast<unsigned>(round)), near(64, 2e-2));
    }
}

/// Whatever rule scores follow: of the last keys alone, of parts and rows that are left no key, beside sinks and rules
/// for weights.
TEST_P(DecodeKernels, FollowRules) {
    for (unsigned round = 0; round < 12; ++round) {
        AttentionShape shape = random_shape();
        const int64_t heads = shape.heads, keys = shape.keys;
        AttentionRules rules;
        if (round % 4 == 0) rules.score = in_turn({soft_cap(3), linear_bias(input("slopes", f32, {heads}))});
        if (round % 4 == 1) rules.score = sliding_window(between(1, 300)), rules.skips = true;
        if (round % 4 == 2) rules.score = additive_bias(input("bias", shape.type, {1, heads, 1, keys}));
        if (round % 4 == 3)
            rules.score = [=](const Expr& score, const ScorePlace& at) {
                return select(at.head == 1 || at.position - at.key < keys / 3, -infinity, score * 1.5);
            };
        if (chance()) rules.sinks = input("sinks", f32, {heads});
        if (chance()) rules.weights = weight_dropout(0.3, 7u, heads, 1, keys);
        DecodeTiles tiles = decode_tiles(shape, device_target());
        tiles.parts = between(1, 9);
        tiles.stages = between(2, 3);
        SCOPED_TRACE(fmt::format("{} x {} heads, groups of {}, {} keys of {} in {} parts, width {}", shape.batch,
                                 shape.heads, shape.group, shape.keys, shape.depth, tiles.parts, shape.width));
        const Schedule s = decode_schedule(shape, tiles, device_target(), rules);
        Executable executable(build(s), device_);
        const Attention plain = declare_attention(shape, rules.score, false, rules.weights, rules.sinks);
        const std::vector<Tensor> outputs = {plain.o, plain.lse};
        expect_declared(executable, outputs, random_bindings(outputs, round), near(64, 2e-2));
        expect_compiles(executable.program());
    }
}

/// What is declared is a result, too, where a part, or all, is left no key.
TEST(Decode, DeclaresPartsWithoutKeys) {
    const AttentionShape shape{.batch = 1, .heads = 4, .rows = 1, .keys = 40, .depth = 8, .width = 8, .group = 2};
    const AttentionRules rules{.score = [](const Expr& score, const ScorePlace& at) {
        return select(at.head > 0 && at.key > 20, score, -infinity);
    }};
    const AttentionInParts parts = declare_attention_in_parts(shape, 16, rules);
    const Attention plain = declare_attention(shape, rules.score);
    const Bindings bindings = random_bindings({plain.o, plain.lse}, 3);
    const std::vector<HostArray> got = interpret_plain({parts.o, parts.lse}, bindings, Precision::Float64),
                                 expected = interpret_plain({plain.o, plain.lse}, bindings, Precision::Float64);
    for (size_t k = 0; k < got.size(); ++k) {
        auto differs = difference(k == 0 ? "o" : "lse", got[k], expected[k], near(0, 1e-5));
        EXPECT_FALSE(differs) << *differs;
    }
}

/// Steps of keys that a window leaves out are not gone through.
TEST(Decode, GoesThroughWindowsAlone) {
    const AttentionShape shape{.batch = 1, .heads = 8, .rows = 1, .keys = 4096, .depth = 64, .width = 64, .group = 8};
    const Target target = tw::target("sm_90a");
    const DecodeTiles tiles{.keys = 64, .stages = 2, .parts = 1};
    const Program program = build(decode_schedule(shape, tiles, target, {.score = sliding_window(256), .skips = true}));
    EXPECT_THAT(program.cuda(), testing::HasSubstr("for (int step = 0; step < 4; ++step)"));
}

/// A part in which all scores are far below those of others, whose weight is 0, changes nothing.
TEST_P(DecodeKernels, PartsOfNoWeight) {
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 1, .keys = 192, .depth = 16, .width = 16, .group = 2};
    Executable executable(build(decode_schedule(shape, {.stages = 2, .parts = 3}, device_target())), device_);
    const Attention plain = declare_attention(shape);
    const std::vector<Tensor> outputs = {plain.o, plain.lse};
    Bindings bindings = random_bindings(outputs, 5);
    HostArray& keys = bindings.inputs.at("k");
    for (int64_t key = 64; key < 128; ++key)
        for (int64_t d = 0; d < shape.depth; ++d) keys.set({0, key, 0, d}, make_value(bf16, 3000.0));
    HostArray& queries = bindings.inputs.at("q");
    for (int64_t h = 0; h < shape.heads; ++h)
        for (int64_t d = 0; d < shape.depth; ++d) queries.set({0, 0, h, d}, make_value(bf16, -1.0));
    expect_declared(executable, outputs, bindings, near(64, 2e-2));
}

TEST(Decode, IsOfOneRowThatSeesAllKeys) {
    AttentionShape shape{.batch = 1, .heads = 4, .rows = 2, .keys = 300, .depth = 64, .width = 64, .group = 2};
    EXPECT_ERROR(declare_attention_in_parts(shape, 64),
                 "attention in parts: 2 rows; declare one row that sees all keys");
    shape.rows = 1;
    shape.causal = true;
    EXPECT_ERROR(declare_attention_in_parts(shape, 64),
                 "attention in parts: 1 rows, causal; declare one row that sees all keys");
    EXPECT_FALSE(is_decode(shape));
}

/// Whose blocks keep all multiprocessors busy, and read each key once.
TEST(Decode, SharesKeysOutWhereSequencesAreFew) {
    const Target target = tw::target("sm_90a");
    AttentionShape shape{.batch = 1, .heads = 32, .rows = 1, .keys = 32768, .depth = 128, .width = 128, .group = 4};
    EXPECT_EQ(decode_tiles(shape, target).parts, target.multiprocessors / 8);
    shape.batch = 64;
    EXPECT_EQ(decode_tiles(shape, target).parts, 1);
    shape.batch = 1, shape.keys = 100;
    EXPECT_EQ(decode_tiles(shape, target).parts, 1);
    const Program program = build(find_kernel("attention_bf16_1x32x1x128_keys32768_group4")->make(target));
    EXPECT_EQ(program.kernels().size(), 2U);
}

}  // namespace
}  // namespace tw::schedules

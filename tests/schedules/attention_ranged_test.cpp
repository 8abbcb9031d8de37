// Attention whose tiles go through the keys that tables name: tables of any rule, and results as of all keys.
#include "schedules/attention_ranged.h"

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

class RangedKernels : public RandomCases {
protected:
    RangedKernels() : RandomCases(179) {}

    AttentionShape random_shape() {
        AttentionShape shape{.batch = between(1, 2),
                             .heads = between(1, 2),
                             .rows = between(1, 140),
                             .keys = 0,
                             .depth = 8 * between(1, 9),
                             .width = 8 * between(1, 9),
                             .group = between(1, 2),
                             .causal = chance()};
        shape.keys = chance() ? 4 * between(1, 45) : between(1, 170);
        shape.heads *= shape.group;
        shape.heads_first = chance();
        if (shape.causal) shape.keys_before = shape.keys - shape.rows;
        if (chance()) shape.type = f16;
        return shape;
    }
    /// Documents of any lengths, which rows and keys have in common; the last keys are of none that rows have.
    Bindings with_documents(const AttentionShape& shape, Bindings bindings) {
        for (int64_t b = 0; b < shape.batch; ++b)
            for (const auto& [name, count] : {std::pair("of_rows", shape.rows), std::pair("of_keys", shape.keys)})
                for (int64_t i = 0, now = 0; i < count; ++i) {
                    if (bindings.inputs.contains(name)) bindings.inputs.at(name).set({b, i}, make_value(i32, now));
                    if (between(0, 30) == 0) ++now;
                }
        if (bindings.inputs.contains("prefix")) fill_integers(bindings.inputs.at("prefix"), 0, 90, 4);
        return bindings;
    }
    AttentionRules rules(unsigned kind, const AttentionShape& shape) {
        const Tensor of_rows = input("of_rows", i32, {shape.batch, shape.rows}),
                     of_keys = input("of_keys", i32, {shape.batch, shape.keys}),
                     prefix = input("prefix", i32, {shape.heads});
        if (kind == 0) return {.score = documents(of_rows, of_keys)};
        if (kind == 1)
            return {.score = in_turn({soft_cap(3), documents(of_rows, of_keys)}),
                    .sinks = input("sinks", f32, {shape.heads})};
        if (kind == 2) return {.score = sliding_window(between(1, 90))};
        return {.score =
                    [=](const Expr& score, const ScorePlace& at) {
                        return select(at.key < cast(i64, prefix(at.head)), score * 0.5, -infinity);
                    },
                .weights = weight_dropout(0.2, 5u, shape.heads, shape.rows, shape.keys)};
    }
};
TW_ON_EACH_DEVICE(RangedKernels);

TEST_P(RangedKernels, GiveWhatAllKeysGive) {
    for (unsigned round = 0; round < 6; ++round) {
        const AttentionShape shape = random_shape();
        const AttentionRules of = rules(round % 4, shape);
        const VarlenTiles tiles{.rows = 64 * between(1, 2),
                                .keys = 16 * between(2, 5),
                                .stages = between(2, 3),
                                .heads = shape.heads % 2 == 0 && chance() ? 2 : 1};
        const TileRanges made = declare_key_ranges(shape, of.score, tiles.rows);
        const RangedAttention a = declare_ranged_attention(shape, tiles, of);
        const Schedule s = ranged_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const Attention plain = declare_attention(shape, of.score, false, of.weights, of.sinks);
        const std::vector<Tensor> outputs{plain.o, plain.lse};
        const Bindings of_tables = with_documents(shape, random_bindings({made.ranges, plain.o, a.of.o}, round));
        Bindings launch = of_tables;
        launch.inputs.at("ranges") = interpret_plain({made.ranges}, of_tables)[0];
        const std::vector<HostArray> expected = interpret_plain(outputs, launch),
                                     declared = interpret_plain({a.of.o, a.of.lse}, launch);
        Executable executable(build(s), device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        for (size_t k = 0; k < outputs.size(); ++k) {
            auto differs = difference(outputs[k].name(), got[k], expected[k], near(64, 2e-2));
            EXPECT_FALSE(differs) << *differs;
            differs = difference(outputs[k].name(), declared[k], expected[k], near(64, 2e-2));
            EXPECT_FALSE(differs) << "as declared: " << *differs;
        }
        if (round < 4) expect_compiles(executable.program());  // a kernel of each kind
    }
}

/// The first key that any row of a tile may see, of any head, and the last, by each row and key.
TEST_P(RangedKernels, HaveRangesOfAnyRule) {
    for (unsigned round = 0; round < 8; ++round) {
        const AttentionShape shape = random_shape();
        const ScoreRule rule = rules(round % 4, shape).score;
        const int64_t of_tile = 16 * between(1, 5);
        const TileRanges made = declare_key_ranges(shape, rule, of_tile);
        const Schedule s = key_ranges_schedule(made, device_target());
        const Bindings launch = with_documents(shape, random_bindings(s.outputs(), round));
        expect_declared(s, launch);
        const HostArray ranges = interpret_plain(s.outputs(), launch)[0];
        const Tensor sees =
            compute("sees", {shape.batch, shape.heads, shape.rows, shape.keys}, [&](Expr b, Expr h, Expr i, Expr j) {
                const Expr score = rule(constant(f32, 1.0), {b, h, i, j, shape.position(i)});
                return shape.causal ? select(j <= shape.position(i), score, -infinity) : score;
            });
        const HostArray scores = interpret_plain({sees}, launch)[0];
        for (int64_t b = 0; b < shape.batch; ++b)
            for (int64_t tile = 0; tile * of_tile < shape.rows; ++tile) {
                int64_t first = shape.keys, behind = 0;
                for (int64_t h = 0; h < shape.heads; ++h)
                    for (int64_t i = tile * of_tile; i < std::min((tile + 1) * of_tile, shape.rows); ++i)
                        for (int64_t j = 0; j < shape.keys; ++j) {
                            if (!std::isfinite(scores.at({b, h, i, j}).real)) continue;
                            first = std::min(first, j), behind = std::max(behind, j + 1);
                        }
                first = first / keys_of_box * keys_of_box;
                EXPECT_EQ(ranges.at({b, tile, 0}).integer, behind == 0 ? 0 : first);
                EXPECT_EQ(ranges.at({b, tile, 1}).integer, behind == 0 ? 0 : behind - first);
            }
    }
}

TEST(Ranged, IsAskedForByName) {
    const auto named = parse_ranged("attention_ranged_f16_2x12x300x40_keys500_causal_lower_right_softcap30_documents");
    ASSERT_TRUE(named);
    EXPECT_TRUE(!named->of_tables && named->attention.shape.keys_before == 200);
    EXPECT_EQ(named->attention.rules, "_softcap30_documents");
    EXPECT_TRUE(parse_ranged("attention_key_ranges_bf16_1x1x300x64_documents")->of_tables);
    EXPECT_FALSE(parse_ranged("attention_ranged_bf16_1x1x300x64_tile64x64s2"));
    for (const char* name : {"attention_ranged_bf16_1x2x300x256_documents", "attention_ranged_bf16_1x2x300x128_causal",
                             "attention_key_ranges_bf16_1x2x300x128_documents", "attention_key_ranges_bf16_1x2x300x64"})
        EXPECT_NO_THROW(build(find_kernel(name)->make(tw::target("sm_90a")))) << name;
}

TEST(RangedErrors, SayWhatToGive) {
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 8, .keys = 8, .depth = 8, .width = 8};
    EXPECT_ERROR(declare_key_ranges(shape, sliding_window(3), 0), "key ranges: of_tile = 0; give at least 1");
    EXPECT_ERROR(declare_ranged_attention(shape, {.keys = 0}, {}), "tiles of ranges: keys = 0; give at least 1");
}

}  // namespace
}  // namespace tw::schedules

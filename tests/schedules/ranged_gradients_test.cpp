// Gradients of attention whose tiles go through what tables name: those of all keys, by tables of any rule.
#include "schedules/ranged_gradients.h"

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

class RangedGradientKernels : public RandomCases {
protected:
    RangedGradientKernels() : RandomCases(201) {}

    AttentionShape random_shape() {
        AttentionShape shape{.batch = between(1, 2),
                             .heads = between(1, 2),
                             .rows = chance() ? 64 : between(1, 100),
                             .keys = 0,
                             .depth = 8 * between(1, 3),
                             .width = 8 * between(1, 3),
                             .group = between(1, 2),
                             .causal = chance()};
        shape.keys = chance() ? 4 * between(1, 25) : between(1, 100);
        shape.heads *= shape.group;
        shape.heads_first = chance();
        if (shape.causal) shape.keys_before = shape.keys - shape.rows;
        if (chance()) shape.type = f16;
        return shape;
    }

    /// Documents in turn with a soft cap, of numbers that each head has of its own, and of windows: what rules read by
    /// rows, by keys, and by heads.
    AttentionRules rules(unsigned kind, const AttentionShape& shape) {
        const Tensor of_rows = input("of_rows", i32, {shape.batch, shape.rows}),
                     of_keys = input("of_keys", i32, {shape.batch, shape.keys}),
                     factors = input("factors", f32, {shape.heads, shape.keys}),
                     shifts = input("shifts", f32, {1, shape.rows});
        const ScoreRule by_heads = [=](const Expr& score, const ScorePlace& at) {
            return score * factors(at.head, at.key) + shifts(0, at.row);
        };
        if (kind == 0)
            return {.score = in_turn({soft_cap(3), documents(of_rows, of_keys)}),
                    .sinks = input("sinks", f32, {shape.heads})};
        if (kind == 1)
            return {.score = in_turn({by_heads, documents(of_rows, of_keys)}),
                    .weights = weight_dropout(0.2, 5u, shape.heads, shape.rows, shape.keys)};
        if (kind == 2) return {.score = in_turn({by_heads, sliding_window(between(1, 90))})};
        return {};
    }

    /// Inputs of both, o and lse as the formula gives them, and ranges of the rule; documents of any lengths, and the
    /// last keys of none that rows have.
    Bindings launch_of(const std::vector<Tensor>& outputs, const AttentionShape& shape, const AttentionRules& rules,
                       const Attention& plain, int64_t of_tile, unsigned seed) {
        std::vector<Tensor> all = outputs;
        all.push_back(plain.o);
        Bindings launch = random_bindings(all, seed);
        for (int64_t b = 0; b < shape.batch; ++b)
            for (const auto& [name, count] : {std::pair("of_rows", shape.rows), std::pair("of_keys", shape.keys)})
                for (int64_t i = 0, now = 0; i < count; ++i) {
                    if (launch.inputs.contains(name)) launch.inputs.at(name).set({b, i}, make_value(i32, now));
                    if (between(0, 30) == 0) ++now;
                }
        launch.inputs.at("ranges") =
            interpret_plain({declare_key_ranges(shape, rules.score, of_tile).ranges}, launch)[0];
        const std::vector<HostArray> saved = interpret_plain({plain.o, plain.lse}, launch);
        launch.inputs["o"] = saved[0], launch.inputs["lse"] = saved[1];
        return launch;
    }

    static void expect_near(const Tensor& of, const HostArray& got, const HostArray& expected) {
        double most = 0.01;
        for (std::vector<int64_t> at(expected.shape.size(), 0);;) {
            most = std::max(most, std::abs(expected.at(at).real));
            if (!advance(at, expected.shape)) break;
        }
        auto differs = difference(of.name(), got, expected, near(0, 0.02 * most));
        EXPECT_FALSE(differs) << *differs;
    }
};
TW_ON_EACH_DEVICE(RangedGradientKernels);

TEST_P(RangedGradientKernels, AreThoseOfAllKeys) {
    for (unsigned round = 0; round < 5; ++round) {
        const AttentionShape shape = random_shape();
        const AttentionRules of = rules(round % 4, shape);
        const GradientTiles tiles{.key_rows = 64 * between(1, 2),
                                  .key_step = 16 * between(2, 4),
                                  .query_rows = 64 * between(1, 2),
                                  .query_step = 16 * between(2, 4),
                                  .stages = between(2, 3),
                                  .passes = {.together = chance()}};
        const RangedGradients a = declare_ranged_gradients(shape, tiles, of);
        const Schedule s = ranged_gradients_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const Attention plain = declare_attention(shape, of.score, false, of.weights, of.sinks);
        const AttentionGradients whole = declare_attention_gradients(shape, {}, of.score, false, of.weights, of.sinks);
        const Bindings launch = launch_of(s.outputs(), shape, of, plain, tiles.query_rows, round);
        std::vector<Tensor> wanted{whole.dq, whole.dk, whole.dv};
        if (of.sinks.defined()) wanted.push_back(whole.d_sinks);
        const std::vector<HostArray> expected = interpret_plain(wanted, launch, Precision::Float64);
        Executable executable(build(s), device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t k = 0; k < wanted.size(); ++k) expect_near(wanted[k], got[k], expected[k]);
        if (round == 0) {
            const std::vector<HostArray> declared = interpret_plain(s.outputs(), launch, Precision::Float64);
            for (size_t k = 0; k < wanted.size(); ++k) expect_near(wanted[k], declared[k], expected[k]);
        }
        expect_compiles(executable.program());
    }
}

/// By keys the table says what it says by rows: of each tile of keys the rows whose tiles go through any of them, and
/// no tile of rows more on either side.
TEST_P(RangedGradientKernels, HaveRangesOfKeys) {
    for (unsigned round = 0; round < 8; ++round) {
        const AttentionShape shape = random_shape();
        const int64_t of_rows = 16 * between(1, 5), of_keys = 16 * between(1, 5),
                      tiles = (shape.rows + of_rows - 1) / of_rows;
        const Tensor ranges = input("ranges", i32, {shape.batch, tiles, 2});
        const TileRanges made = declare_ranges_of_keys(shape, ranges, of_rows, of_keys);
        const Schedule s = key_ranges_schedule(made, device_target());
        Bindings launch = random_bindings(s.outputs(), round);
        for (int64_t b = 0; b < shape.batch; ++b)
            for (int64_t tile = 0; tile < tiles; ++tile) {
                const int64_t first = between(0, static_cast<int>(shape.keys - 1)),
                              count = chance() ? 0 : between(1, static_cast<int>(shape.keys - first));
                launch.inputs.at("ranges").set({b, tile, 0}, make_value(i32, first));
                launch.inputs.at("ranges").set({b, tile, 1}, make_value(i32, count));
            }
        expect_declared(s, launch);
        const HostArray got = interpret_plain(s.outputs(), launch)[0];
        for (int64_t b = 0; b < shape.batch; ++b)
            for (int64_t tile = 0; tile * of_keys < shape.keys; ++tile) {
                int64_t first = shape.rows, behind = 0;
                for (int64_t i = 0; i < shape.rows; ++i) {
                    auto range = [&](int64_t what) {
                        return launch.inputs.at("ranges").at({b, i / of_rows, what}).integer;
                    };
                    for (int64_t j = tile * of_keys; j < std::min((tile + 1) * of_keys, shape.keys); ++j)
                        if (range(0) <= j && j < range(0) + range(1))
                            first = std::min(first, i), behind = std::max(behind, i + 1);
                }
                EXPECT_EQ(got.at({b, tile, 0}).integer, behind == 0 ? 0 : first);
                EXPECT_EQ(got.at({b, tile, 1}).integer, behind == 0 ? 0 : behind - first);
            }
    }
}

/// Of the forward pass's declaration, by gradients(), which gives sinks theirs, and of operands that are parts of one
/// tensor.
TEST_P(RangedGradientKernels, AreThoseOfItsDeclaration) {
    const AttentionShape shape{
        .batch = 2, .heads = 2, .rows = 23, .keys = 23, .depth = 8, .width = 8, .causal = true, .type = f16};
    const VarlenTiles forward{.rows = 16, .keys = 16};
    const GradientTiles tiles{.key_rows = 8, .key_step = 16, .query_rows = 16, .query_step = 16};
    const Tensor qkv = input("qkv", f16, {2, 23, 3, 2, 8});
    auto part = [&](const char* name, int64_t n) {
        return compute(name, {2, 23, 2, 8}, [&](Expr b, Expr i, Expr h, Expr d) { return qkv(b, i, n, h, d); });
    };
    const AttentionOperands operands{.q = part("q_1", 0), .k = part("k_1", 1), .v = part("v_1", 2), .suffix = "_1"};
    const AttentionRules of = rules(0, shape);
    const RangedAttention a = declare_ranged_attention(shape, forward, of, operands);
    const Attention plain = declare_attention(shape, of.score, false, {}, of.sinks, operands);
    const Tensor o = with_ranged_gradients(a, shape, forward, tiles), g = input("g", f16, {2, 23, 2, 8});
    const std::vector<Tensor> made = gradients(o, g, {qkv, of.sinks}), wanted = gradients(plain.o, g, {qkv, of.sinks});
    Bindings launch = random_bindings(made, 9);
    for (const char* name : {"of_rows", "of_keys"})
        for (int64_t b = 0; b < 2; ++b)
            for (int64_t i = 0; i < 23; ++i) launch.inputs.at(name).set({b, i}, make_value(i32, i / 9));
    launch.inputs.at("ranges_1") = interpret_plain({declare_key_ranges(shape, of.score, 16).ranges}, launch)[0];
    const std::vector<HostArray> expected = interpret_plain(wanted, launch, Precision::Float64);
    Executable executable(build(choose_schedule(made, device_target())), device_);
    const std::vector<HostArray> got = run_on(executable, launch);
    for (size_t k = 0; k < made.size(); ++k) expect_near(made[k], got[k], expected[k]);
}

TEST(RangedGradients, AreAskedForByName) {
    const auto named = parse_ranged_gradients(
        "attention_ranged_gradients_f16_2x12x300x40_keys500_causal_lower_right_softcap30_tile64x32q128x48s3a");
    ASSERT_TRUE(named);
    EXPECT_EQ(named->forward.shape.keys_before, 200);
    EXPECT_TRUE(named->tiles->key_rows == 64 && named->tiles->query_step == 48 && !named->tiles->passes.together);
    for (const char* name :
         {"attention_ranged_gradients_bf16_1x2x300", "attention_ranged_gradients_bf16_1x2x300x64_tile64",
          "attention_ranged_gradients_bf16_1x2x300x64_tile100x64q128x64s2"})
        EXPECT_FALSE(parse_ranged_gradients(name)) << name;
    for (const char* name : {"attention_ranged_gradients_bf16_1x2x300x64_documents",
                             "attention_ranged_gradients_bf16_2x4x256x40_group2_causal_softcap30_sinks",
                             "attention_ranged_gradients_bf16_1x1x41x64"})
        EXPECT_NO_THROW(build(find_kernel(name)->make(tw::target("sm_90a")))) << name;
}

TEST(RangedGradientErrors, SayWhatToGive) {
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 8, .keys = 8, .depth = 8, .width = 8};
    EXPECT_ERROR(declare_ranged_gradients(shape, {.passes = {.kept = true}}, {}),
                 "adjoints of scores are neither kept nor added up; declare gradients without");
    EXPECT_ERROR(declare_ranged_gradients(shape, {.key_step = 0}, {}), "tiles of gradients: key_step = 0");
    EXPECT_ERROR(declare_ranges_of_keys(shape, input("ranges", i32, {1, 1, 2}), 64, 0), "of_keys = 0; give at least 1");
    const RangedAttention a = declare_ranged_attention(shape, {.rows = 64}, {});
    EXPECT_ERROR(with_ranged_gradients(a, shape, {.rows = 64}, {.query_rows = 128}),
                 "its table is of 64 rows a tile, that of gradients of 128; give both the same");
    auto table = [](Type type, const Shape& extents) { return input("mine", type, extents); };
    EXPECT_ERROR(declare_ranged_gradients(shape, {}, {}, {.ranges = table(i64, {1, 1, 2})}),
                 "attention: the table 'mine' is i64 [1, 1, 2], where shape and tiles say i32 [1, 1, 2] for 'ranges'; "
                 "give what declare_key_ranges, of tiles of 128 rows, makes of them");
    EXPECT_ERROR(declare_ranged_gradients(shape, {}, {}, {.ranges = table(i32, {1, 2})}),
                 "'mine' is i32 [1, 2], where");
    EXPECT_ERROR(
        declare_ranged_gradients(shape, {}, {}, {.ranges_of_keys = table(i32, {1, 3, 2})}),
        "say i32 [1, 1, 2] for 'ranges_of_keys'; give what declare_ranges_of_keys, of tiles of 128 rows and 128 "
        "keys, makes of them");
    EXPECT_ERROR(declare_ranges_of_keys(shape, table(i32, {1, 4, 2}), 64, 64), "say i32 [1, 1, 2] for 'ranges'");
    EXPECT_ERROR(declare_ranges_of_keys(shape, table(i32, {1, 4, 2}), 64, 64), "ranged_gradients_test.cpp:");
}

}  // namespace
}  // namespace tw::schedules

// Gradients of attention: that they are, what names ask for, and results of shapes that people have.
#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "ops/program.h"
#include "schedules/attention_backward.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

/// Gives gradients what the forward pass computed.
void save(Bindings& bindings, const Attention& forward, const std::vector<HostArray>& saved) {
    for (size_t k = 0; k < saved.size(); ++k) bindings.inputs[forward.results()[k].name()] = saved[k];
}

/// What a user would write for all kernels together, where tiles have as many elements as heads, takes so many
/// statements.
TEST(AttentionGradients, AreShort) {
    for (const char* name : {"attention_gradients_bf16_2x16x4096x64", "attention_gradients_bf16_2x16x4096x128",
                             "attention_gradients_bf16_2x16x4096x128_causal"})
        EXPECT_LE(find_kernel(name)->make(tw::target("sm_90a")).trace().size(), 45U) << name;
}

/// What the formula's gradients are, with o and lse as the formula gives them.
TEST(AttentionGradients, AreThoseOfTheFormula) {
    for (const bool causal : {false, true}) {
        const AttentionShape shape{.batch = 1,
                                   .heads = 4,
                                   .rows = 7,
                                   .keys = 9,
                                   .depth = 8,
                                   .width = 16,
                                   .group = 2,
                                   .causal = causal,
                                   .type = f16};
        const Attention forward = declare_attention(shape);
        const AttentionGradients declared = declare_attention_gradients(shape);
        const std::vector<Tensor> given{declared.dq, declared.dk, declared.dv};
        Bindings bindings = random_bindings(given, 11);
        const std::vector<HostArray> saved = interpret_plain(forward.results(), bindings);
        save(bindings, forward, saved);
        const std::vector<Tensor> wanted = gradients(forward.o, declared.g, {forward.q, forward.k, forward.v});
        const std::vector<HostArray> got = interpret_plain(given, bindings, Precision::Float64),
                                     expected = interpret_plain(wanted, bindings, Precision::Float64);
        for (size_t k = 0; k < got.size(); ++k) {
            auto differs = difference(given[k].name(), got[k], expected[k], near(0, 1e-2));  // o is rounded
            EXPECT_FALSE(differs) << *differs;
        }
    }
}

/// Of the forward pass's declaration and what is made of its result, by gradients(), from what it saved.
TEST(AttentionGradients, AreThoseOfItsDeclaration) {
    const AttentionShape shape{
        .batch = 1, .heads = 4, .rows = 6, .keys = 8, .depth = 8, .width = 16, .group = 2, .type = f16};
    const Tensor bias = input("bias", f32, {1, 4, 6, 8}), sinks = input("sinks", f32, {4});
    for (const bool by_rule : {false, true}) {
        const ScoreRule rule = by_rule ? additive_bias(bias) : ScoreRule();
        const Tensor of_sinks = by_rule ? sinks : Tensor();
        const GradientPasses passes{.kept = by_rule, .of_pairs = by_rule};
        const Attention a = declare_attention(shape, rule, false, {}, of_sinks);
        const Tensor o = with_attention_gradients(a, shape, passes);
        std::vector<Tensor> inputs{a.q, a.k, a.v};
        if (by_rule) inputs.insert(inputs.end(), {bias, sinks});
        const Tensor g = input("g", f16, {1, 6, 4, 16});
        auto twice = [&](const Tensor& of) {
            return compute("twice", {1, 6, 4, 16},
                           [&](Expr b, Expr i, Expr h, Expr e) { return cast(f32, of(b, i, h, e)) * 2.0; });
        };
        const Tensor g_of_twice = compute("g_of_twice", {1, 6, 4, 16}, [&](Expr b, Expr i, Expr h, Expr e) {
            return cast(f32, g(b, i, h, e)) * 0.5;
        });
        const std::vector<Tensor> made = gradients(twice(o), g_of_twice, inputs),
                                  wanted = gradients(twice(a.o), g_of_twice, inputs);
        EXPECT_NO_THROW(Schedule(made, tw::target("sm_90a")));  // whose stages have names of their own
        Bindings bindings = random_bindings(made, 14);
        const std::vector<HostArray> got = interpret_plain(made, bindings, Precision::Float64),
                                     expected = interpret_plain(wanted, bindings, Precision::Float64);
        bool from_saved = false;
        for (const auto& operation : operations_of(made)) from_saved = from_saved || operation->name == "delta";
        EXPECT_TRUE(from_saved);
        for (size_t k = 0; k < got.size(); ++k) {
            auto differs = difference(made[k].name(), got[k], expected[k], near(0, 2e-2));
            EXPECT_FALSE(differs) << *differs;
        }
    }
    const Tensor odd = input("bias", f32, {1, 4, 6, 9});
    AttentionShape longer = shape;
    longer.keys = 9;
    EXPECT_ERROR(with_attention_gradients(declare_attention(longer, additive_bias(odd)), longer, {.of_pairs = true}),
                 "the rule reads nothing for each row and key in rows of a multiple of 16 bytes");
}

/// Rows that see no key are 0 forward, and count nothing backward: as if they were not there.
TEST(AttentionGradients, OfRowsWithoutKeys) {
    AttentionShape whole{
        .batch = 1, .heads = 2, .rows = 7, .keys = 4, .depth = 8, .width = 8, .causal = true, .type = f16};
    whole.keys_before = -3, whole.heads_first = true;
    AttentionShape seen = whole;
    seen.rows = 4, seen.keys_before = 0;
    ASSERT_TRUE(whole.has_empty_rows() && !seen.has_empty_rows());
    const Attention of_all = declare_attention(whole), of_seen = declare_attention(seen);
    const AttentionGradients all = declare_attention_gradients(whole), few = declare_attention_gradients(seen);
    Bindings bindings = random_bindings({all.dq, all.dk, all.dv}, 13), of_few = bindings;
    auto behind = [](const HostArray& rows, int64_t count) {  // the last rows of each head
        HostArray last = host_array(rows.type, {1, 2, count, 8});
        const int64_t skipped = rows.shape[2] - count;
        for (int64_t h = 0; h < 2; ++h)
            for (int64_t i = 0; i < count; ++i)
                for (int64_t x = 0; x < 8; ++x) last.set({0, h, i, x}, rows.at({0, h, i + skipped, x}));
        return last;
    };
    for (const char* name : {"q", "g"}) of_few.inputs[name] = behind(bindings.inputs.at(name), 4);
    auto saved = [](Bindings& given, const Attention& of) {
        const std::vector<HostArray> made = interpret_plain({of.o, of.lse}, given);
        given.inputs["o"] = made[0], given.inputs["lse"] = made[1];
    };
    saved(bindings, of_all), saved(of_few, of_seen);
    for (int64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(bindings.inputs.at("o").at({0, 1, i, 5}).real, 0);
        EXPECT_EQ(bindings.inputs.at("lse").at({0, 1, i}).real, -std::numeric_limits<double>::infinity());
    }
    const std::vector<HostArray> got = interpret_plain({all.dq, all.dk, all.dv}, bindings, Precision::Float64),
                                 wanted = interpret_plain({few.dq, few.dk, few.dv}, of_few, Precision::Float64);
    auto expect_same = [](const std::string& name, const HostArray& a, const HostArray& b) {
        auto differs = difference(name, a, b, near(0, 1e-6));
        EXPECT_FALSE(differs) << *differs;
    };
    expect_same("dq", behind(got[0], 4), wanted[0]);
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(got[0].at({0, 1, i, 5}).real, 0);
    expect_same("dk", got[1], wanted[1]), expect_same("dv", got[2], wanted[2]);
}

/// Whatever rule the scores follow: of its derivative, and of what it masks.
TEST(AttentionGradients, AreThoseOfRules) {
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 9, .keys = 9, .depth = 8, .width = 8, .type = f16};
    const Tensor slopes = input("slopes", f32, {2}), numbers = input("documents", i32, {1, 9});
    const ScoreRule squares = [](const Expr& score, const ScorePlace&) { return score * score * 0.5 - score; };
    for (const ScoreRule& rule : {in_turn({soft_cap(3), linear_bias(slopes)}), sliding_window(4), squares,
                                  in_turn({soft_cap(2), documents(numbers, numbers), squares})}) {
        const Attention forward = declare_attention(shape, rule);
        const AttentionGradients declared = declare_attention_gradients(shape, {}, rule);
        const std::vector<Tensor> given{declared.dq, declared.dk, declared.dv};
        Bindings bindings = random_bindings({declared.dq, declared.dk, declared.dv, forward.o}, 12);
        if (bindings.inputs.contains("documents")) fill_integers(bindings.inputs.at("documents"), 0, 1, 4);
        const std::vector<HostArray> saved = interpret_plain(forward.results(), bindings);
        save(bindings, forward, saved);
        const std::vector<Tensor> wanted = gradients(forward.o, declared.g, {forward.q, forward.k, forward.v});
        const std::vector<HostArray> got = interpret_plain(given, bindings, Precision::Float64),
                                     expected = interpret_plain(wanted, bindings, Precision::Float64);
        for (size_t k = 0; k < got.size(); ++k) {
            auto differs = difference(given[k].name(), got[k], expected[k], near(0, 2e-2));  // o is rounded
            EXPECT_FALSE(differs) << *differs;
        }
    }
}

/// Of what a rule reads for each row and key, whatever is the same for batches or heads.
TEST(AttentionGradients, AreThoseOfBiases) {
    const AttentionShape shape{.batch = 2, .heads = 2, .rows = 6, .keys = 8, .depth = 8, .width = 8, .type = f16};
    const Tensor bias = input("bias", f32, {1, 2, 6, 8}), factors = input("factors", f32, {6, 8});
    const ScoreRule rule = in_turn({additive_bias(bias), soft_cap(3), [&](const Expr& score, const ScorePlace& at) {
                                        return score * factors(at.row, at.key);
                                    }});
    const Attention forward = declare_attention(shape, rule);
    const AttentionGradients declared = declare_attention_gradients(shape, {.kept = true, .of_pairs = true}, rule);
    ASSERT_EQ(declared.gradients_of_pairs.size(), 2U);
    Bindings bindings = random_bindings(declared.gradients_of_pairs, 12);
    const std::vector<HostArray> saved = interpret_plain(forward.results(), bindings);
    save(bindings, forward, saved);
    const std::vector<Tensor> wanted = gradients(forward.o, declared.g, {bias, factors});
    const std::vector<HostArray> got = interpret_plain(declared.gradients_of_pairs, bindings, Precision::Float64),
                                 expected = interpret_plain(wanted, bindings, Precision::Float64);
    for (size_t k = 0; k < got.size(); ++k) {
        auto differs = difference(declared.gradients_of_pairs[k].name(), got[k], expected[k], near(0, 2e-2));
        EXPECT_FALSE(differs) << *differs;
    }
}

/// Of scores without values: by the derivative of the formula, and by differences of it.
TEST(AttentionGradients, AreThoseOfSinks) {
    const AttentionShape shape{
        .batch = 2, .heads = 4, .rows = 6, .keys = 9, .depth = 8, .width = 8, .group = 2, .type = f16};
    const Tensor sinks = input("sinks", f32, {4});
    for (const ScoreRule& rule : {ScoreRule(), soft_cap(2)}) {
        const Attention forward = declare_attention(shape, rule, false, {}, sinks);
        const AttentionGradients declared = declare_attention_gradients(shape, {}, rule, false, {}, sinks);
        const std::vector<Tensor> given{declared.dq, declared.dk, declared.dv, declared.d_sinks};
        Bindings bindings = random_bindings(given, 12);
        fill_uniform(bindings.inputs.at("sinks"), -1, 2, 3);
        const std::vector<HostArray> saved = interpret_plain(forward.results(), bindings);
        save(bindings, forward, saved);
        const std::vector<Tensor> wanted = gradients(forward.o, declared.g, {forward.q, forward.k, forward.v, sinks});
        const std::vector<HostArray> got = interpret_plain(given, bindings, Precision::Float64),
                                     expected = interpret_plain(wanted, bindings, Precision::Float64);
        for (size_t k = 0; k < got.size(); ++k) {
            auto differs = difference(given[k].name(), got[k], expected[k], near(0, 2e-2));  // o is rounded
            EXPECT_FALSE(differs) << *differs;
        }
        const Axis b = reduce_axis("b", 2), i = reduce_axis("i", 6), h = reduce_axis("h", 4), e = reduce_axis("e", 8);
        const Tensor loss = compute("loss", {1}, [&](Expr) {
            return sum(cast(f32, forward.o(b, i, h, e)) * cast(f32, declared.g(b, i, h, e)), {b, i, h, e});
        });
        for (int64_t head = 0; head < shape.heads; ++head) {
            auto loss_at = [&](double by) {
                Bindings moved = bindings;
                HostArray& scores = moved.inputs.at("sinks");
                scores.set({head}, make_value(f32, scores.at({head}).real + by));
                return interpret_plain({loss}, moved, Precision::Float64)[0].at({0}).real;
            };
            const double step = 0.125;
            EXPECT_NEAR(got[3].at({head}).real, (loss_at(step) - loss_at(-step)) / (2 * step), 2e-2);
        }
    }
}

/// Of dropped weights: the forward pass's mask.
TEST(AttentionGradients, AreThoseOfDropout) {
    const AttentionShape shape{.batch = 2, .heads = 2, .rows = 9, .keys = 11, .depth = 8, .width = 8, .type = f16};
    const WeightRule drop = weight_dropout(0.3, scalar("seed", u32), shape.heads, shape.rows, shape.keys);
    for (const ScoreRule& rule : {ScoreRule(), soft_cap(3)}) {
        const Attention forward = declare_attention(shape, rule, false, drop);
        const AttentionGradients declared = declare_attention_gradients(shape, {}, rule, false, drop);
        const std::vector<Tensor> given{declared.dq, declared.dk, declared.dv};
        Bindings bindings = random_bindings({declared.dq, declared.dk, declared.dv, forward.o}, 12);
        bindings.scalars["seed"] = make_value(u32, int64_t{3});
        const std::vector<HostArray> saved = interpret_plain(forward.results(), bindings);
        save(bindings, forward, saved);
        const std::vector<Tensor> wanted = gradients(forward.o, declared.g, {forward.q, forward.k, forward.v});
        const std::vector<HostArray> got = interpret_plain(given, bindings, Precision::Float64),
                                     expected = interpret_plain(wanted, bindings, Precision::Float64);
        for (size_t k = 0; k < got.size(); ++k) {
            auto differs = difference(given[k].name(), got[k], expected[k], near(0, 2e-2));  // o is rounded
            EXPECT_FALSE(differs) << *differs;
        }
    }
}

TEST(AttentionGradients, AreAskedForByName) {
    const auto named = parse_attention_gradients(
        "attention_gradients_f16_2x12x300x40_keys500_width24_group3_causal_tile64x32q128x48s3a");
    ASSERT_TRUE(named);
    EXPECT_EQ(named->forward.shape.keys, 500);
    EXPECT_TRUE(named->forward.shape.causal);
    const GradientTiles& tiles = named->tiles.value();
    EXPECT_EQ((std::array{tiles.key_rows, tiles.key_step, tiles.query_rows, tiles.query_step}),
              (std::array<int64_t, 4>{64, 32, 128, 48}));
    EXPECT_TRUE(tiles.stages == 3 && !tiles.passes.together && !tiles.passes.kept);
    EXPECT_FALSE(parse_attention_gradients("attention_gradients_bf16_1x2x300x64")->tiles);
    EXPECT_ERROR(
        declare_attention_gradients({.batch = 1, .heads = 5, .rows = 8, .keys = 8, .depth = 8, .width = 8, .group = 2}),
        "attention: 5 heads are no multiple of a group of 2");
    for (const char* name : {"attention_gradients_bf16_1x2x300", "attention_gradients_bf16_1x2x300x64_tile128x128s2",
                             "attention_gradients_bf16_1x2x300x64_tile100x64q128x64s2",
                             "attention_gradients_bf16_1x2x300x64_tile128x64q256x64s2"})
        EXPECT_FALSE(parse_attention_gradients(name)) << name;
    EXPECT_EQ(parse_attention_gradients("attention_gradients_bf16_1x2x300x64_softcap20")->forward.rules, "_softcap20");
    EXPECT_EQ(find_kernel("attention_gradients_bf16_1x2x300x64")->flops, 2.5 * 4 * 2 * 300 * 300 * 64);
    EXPECT_EQ(find_kernel("attention_gradients_bf16_1x4x300x64_group4")->bytes,
              2 * 2 * (4 + 1 + 1 + 4) * 300 * 64 + 4 * 4 * 300);
}

/// Adjoints of scores take memory that grows with rows and keys, up to what is allowed.
TEST(AttentionGradients, KeepAdjointsInTheMemoryAllowed) {
    const AttentionShape shape{.batch = 1, .heads = 16, .rows = 4096, .keys = 4096, .depth = 128, .width = 128};
    const Target target = tw::target("sm_90a");
    const int64_t bytes = int64_t{16} * 4096 * 4096 * 2;
    EXPECT_TRUE(gradient_tiles(shape, target).passes.kept);
    EXPECT_TRUE(gradient_tiles(shape, target, false, bytes).passes.kept);
    EXPECT_FALSE(gradient_tiles(shape, target, false, bytes - 1).passes.kept);
    EXPECT_FALSE(gradient_tiles(shape, target, true).passes.kept);  // a rule's masks may end within a tile
}

/// One head with fewer keys than a tile has rows.
TEST(AttentionGradients, HaveTilesForLittle) {
    for (const char* name : {"attention_gradients_bf16_1x1x44x40", "attention_gradients_bf16_1x1x4x64_causal",
                             "attention_gradients_bf16_1x4x50x128_group4", "attention_gradients_f16_1x1x1x8"})
        EXPECT_NO_THROW(build(find_kernel(name)->make(tw::target("sm_90a")))) << name;
}

TEST(AttentionGradients, HaveTilesForAnyShape) {
    std::mt19937 random(11);
    auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    for (int round = 0; round < 12; ++round) {
        const int64_t group = between(0, 2) == 0 ? 2 : 1;
        AttentionShape shape{.batch = between(1, 4),
                             .heads = group * between(1, 8),
                             .rows = between(1, 3000),
                             .keys = 0,
                             .depth = 8 * between(2, 32),
                             .width = 0,
                             .group = group,
                             .causal = between(0, 1) == 1};
        shape.keys = between(0, 1) ? shape.rows : between(1, 3000);
        shape.width = between(0, 1) ? shape.depth : int64_t{8} * between(2, 32);
        const Target target = tw::target("sm_90a");
        EXPECT_NO_THROW(build(attention_gradients_schedule(shape, gradient_tiles(shape, target), target)))
            << shape.batch << " x " << shape.heads << " x " << shape.rows << " x " << shape.depth << ", keys "
            << shape.keys << ", width " << shape.width << ", group " << group << (shape.causal ? ", causal" : "");
    }
}

class GradientKernels : public RandomCases {
protected:
    GradientKernels() : RandomCases(101) {}
};
TW_ON_EACH_DEVICE(GradientKernels);

TEST_P(GradientKernels, GiveTheDeclared) {
    for (const char* name :
         {"attention_gradients_bf16_1x1x150x32_causal_tile64x64q64x48s2",
          "attention_gradients_f16_1x4x70x24_keys90_width16_group2_tile128x64q128x64s2",
          "attention_gradients_bf16_1x1x130x64_causal_tile128x48q128x48s3a",
          "attention_gradients_bf16_1x4x70x24_keys90_width16_group2_tile128x64q128x64s2k",
          "attention_gradients_f16_1x1x133x40_causal_tile64x32q64x64s2k",
          "attention_gradients_bf16_1x2x200x64_causal_tile64x64q64x64s2ak",
          "attention_gradients_bf16_1x1x200x72_keys90_causal", "attention_gradients_bf16_1x1x64x72_keys200_causal",
          "attention_gradients_bf16_1x1x128x64_causal_tile128x64q128x64s2u",
          "attention_gradients_bf16_1x2x150x40_keys70_causal_lower_right",
          "attention_gradients_bf16_1x4x128x72_keys256_group2_causal_lower_right_heads_first",
          "attention_gradients_f16_2x2x72x80_keys200_causal_lower_right_heads_first",
          "attention_gradients_bf16_1x1x192x80_keys64_causal_lower_right",
          "attention_gradients_bf16_1x1x90x48_keys41_width16_tile64x48q128x48s2",
          "attention_gradients_bf16_1x2x128x64_heads_first_tile128x64q128x64s2u"}) {
        const Schedule s = find_kernel(name)->make(device_target());
        SCOPED_TRACE(name);
        Bindings bindings = random_bindings(s.outputs(), 3);
        fill_uniform(bindings.inputs.at("lse"), 6, 8, 5);  // such as rows of so many keys have
        expect_declared(s, bindings, near(64, 5e-3));
    }
}

/// dq added up by boxes of the kernel of dk and dv: whole steps and blocks, in no fixed order.
TEST_P(GradientKernels, AddUpThoseOfQueries) {
    for (unsigned round = 0; round < 4; ++round) {
        const int64_t groups = 1 + round / 2;
        AttentionShape shape{.batch = between(1, 2),
                             .heads = 2,
                             .rows = 64 * between(1, 2),
                             .keys = 64 * groups * between(1, 2),
                             .depth = groups == 1 ? 16 * between(1, 8) : 64 * between(1, 2),
                             .width = 8 * between(1, 16),
                             .group = 1 + round % 2,
                             .causal = round % 3 == 0};
        if (shape.causal) shape.rows = shape.keys;
        if (chance()) shape.type = f16;
        const GradientTiles tiles{
            .key_rows = 64 * groups, .key_step = 64, .stages = between(2, 3), .passes = {.added = true}};
        const Schedule s = attention_gradients_schedule(shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_FALSE(s.deterministic());
        const Program program = build(s);
        EXPECT_NE(program.cuda().find("tw::tma_reduce_add("), std::string::npos);
        Bindings bindings = random_bindings(s.outputs(), round);
        fill_uniform(bindings.inputs.at("lse"), 6, 8, 5);
        expect_declared(s, bindings, near(64, 5e-3));
        expect_compiles(program);
    }
    const AttentionShape shape{.batch = 1, .heads = 1, .rows = 64, .keys = 64, .depth = 64, .width = 64};
    EXPECT_FALSE(gradient_tiles(shape, device_target()).passes.added);
    EXPECT_TRUE(
        attention_gradients_schedule(shape, gradient_tiles(shape, device_target()), device_target()).deterministic());
}

TEST_P(GradientKernels, OfRules) {
    for (unsigned round = 0; round < 4; ++round) {
        AttentionShape shape{.batch = 1,
                             .heads = 2,
                             .rows = between(1, 150),
                             .keys = 0,
                             .depth = 8 * between(1, 8),
                             .width = 8 * between(1, 8),
                             .group = between(1, 2)};
        shape.keys = shape.rows;
        shape.causal = chance();
        const Tensor slopes = input("slopes", f32, {2}), numbers = input("documents", i32, {1, shape.rows});
        const bool window = round % 2 == 1;
        const ScoreRule rule = window ? in_turn({soft_cap(20), sliding_window(between(1, 100))})
                                      : in_turn({linear_bias(slopes), documents(numbers, numbers)});
        const GradientTiles tiles{.key_rows = 64,
                                  .key_step = 48,
                                  .query_rows = 64,
                                  .query_step = 48,
                                  .passes = gradient_tiles(shape, device_target()).passes};
        const AttentionGradients declared = declare_attention_gradients(shape, tiles.passes, rule, window);
        const Schedule s = attention_gradients_schedule(declared, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings bindings = random_bindings(s.outputs(), round);
        fill_uniform(bindings.inputs.at("lse"), 6, 8, 5);
        if (!window) {
            fill_integers(bindings.inputs.at("documents"), 0, 2, 4);
            fill_uniform(bindings.inputs.at("slopes"), 0, 0.01, 6);  // no exponential leaves its range
        }
        expect_declared(s, bindings, near(64, 5e-3));
        expect_compiles(build(s));
    }
}

/// Of what rules read for each row, or each key, where a step has all of them and their bytes are no boxes.
TEST_P(GradientKernels, OfRulesOfFewRows) {
    for (unsigned round = 0; round < 4; ++round) {
        const AttentionShape shape{.batch = between(1, 2),
                                   .heads = 1,
                                   .rows = between(3, 63),
                                   .keys = between(3, 63),
                                   .depth = 16,
                                   .width = 8 * between(1, 3)};
        const Type type = chance() ? bf16 : f32;
        const Tensor of_rows = input("of_rows", i32, {shape.batch, shape.rows}),
                     of_keys = input("of_keys", i32, {shape.batch, shape.keys}),
                     factors = input("factors", type, {shape.keys}), others = input("others", type, {shape.rows});
        const ScoreRule by_factors = [&](const Expr& score, const ScorePlace& at) {
            return score * cast(f32, factors(at.key)) * cast(f32, others(at.row));
        };
        const ScoreRule rule = in_turn({by_factors, documents(of_rows, of_keys)});
        const GradientTiles tiles{.key_rows = 64, .query_rows = 64};
        const AttentionGradients declared = declare_attention_gradients(shape, tiles.passes, rule);
        const Schedule s = attention_gradients_schedule(declared, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings bindings = random_bindings(s.outputs(), round);
        for (const char* name : {"of_rows", "of_keys"}) fill_integers(bindings.inputs.at(name), 0, 2, 4 + round);
        fill_uniform(bindings.inputs.at("lse"), 6, 8, 5);
        expect_declared(s, bindings, near(64, 5e-3));
        expect_compiles(build(s));
    }
}

TEST_P(GradientKernels, OfBiases) {
    for (unsigned round = 0; round < 4; ++round) {
        AttentionShape shape{.batch = between(1, 2),
                             .heads = 2,
                             .rows = 8 * between(1, 18),
                             .keys = 8 * between(1, 18),
                             .depth = 8 * between(1, 16),
                             .width = 8 * between(1, 16),
                             .group = between(1, 2)};
        if (round == 0) shape.causal = true, shape.keys = shape.rows = 136;
        const Tensor bias = input("bias", chance() ? f32 : bf16,
                                  {chance() ? shape.batch : int64_t{1}, chance() ? 2 : 1, shape.rows, shape.keys});
        const ScoreRule rule = chance() ? in_turn({soft_cap(5), additive_bias(bias)}) : additive_bias(bias);
        const Attention forward = declare_attention(shape, rule);
        GradientTiles tiles = gradient_tiles(shape, device_target(), rule);
        EXPECT_TRUE(tiles.stage_pairs);
        tiles.passes.kept = tiles.passes.of_pairs = true;
        const AttentionGradients declared = declare_attention_gradients(shape, tiles.passes, rule);
        const Schedule s = attention_gradients_schedule(declared, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(s.outputs().size(), 4U);
        Bindings bindings = random_bindings(s.outputs(), round);
        fill_uniform(bindings.inputs.at("spread"), 6, 8, 5);
        expect_declared(s, bindings, near(64, 5e-3));
        expect_compiles(build(s));
    }
}

TEST_P(GradientKernels, OfSinks) {
    for (const char* name : {"attention_gradients_bf16_2x4x150x32_group2_causal_sinks_tile64x64q64x48s2",
                             "attention_gradients_f16_1x2x70x72_sinks", "attention_gradients_f16_1x1x1x8_sinks"}) {
        const Schedule s = find_kernel(name)->make(device_target());
        SCOPED_TRACE(name);
        Bindings bindings = random_bindings(s.outputs(), 3);
        fill_uniform(bindings.inputs.at("lse"), 6, 8, 5);
        EXPECT_EQ(s.outputs().size(), 4U);
        expect_declared(s, bindings, near(64, 5e-3));
        expect_compiles(build(s));
    }
}

/// Dropped weights: the same elements as declared, whatever the tiles.
TEST_P(GradientKernels, OfDropout) {
    const AttentionShape shape{
        .batch = 1, .heads = 2, .rows = 90, .keys = 90, .depth = 32, .width = 24, .causal = true};
    const WeightRule drop = weight_dropout(0.2, scalar("seed", u32), shape.heads, shape.rows, shape.keys);
    for (const bool together : {true, false}) {
        const int64_t step = together ? 48 : 64;
        const GradientTiles tiles{
            .key_rows = 64, .key_step = step, .query_rows = 64, .query_step = step, .passes = {.together = together}};
        const AttentionGradients declared = declare_attention_gradients(shape, tiles.passes, {}, false, drop);
        const Schedule s = attention_gradients_schedule(declared, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings bindings = random_bindings(s.outputs(), 9);
        bindings.scalars["seed"] = make_value(u32, int64_t{21});
        fill_uniform(bindings.inputs.at("lse"), 6, 8, 5);
        expect_declared(s, bindings, near(64, 5e-3));
        expect_compiles(build(s));
    }
}

}  // namespace
}  // namespace tw::schedules

// Attention whose scores follow rules of users: one schedule for all of them, and results as declared.
#include "schedules/score_rules.h"

#include <array>
#include <cmath>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/program.h"
#include "schedules/attention.h"
#include "schedules/attention_backward.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

class ScoreRules : public RandomCases {
protected:
    ScoreRules() : RandomCases(211) {}

    AttentionShape random_shape() {
        AttentionShape shape{.batch = between(1, 2),
                             .heads = between(1, 2),
                             .rows = between(1, 150),
                             .keys = between(1, 200),
                             .depth = 8 * between(1, 9),
                             .width = 8 * between(1, 9),
                             .group = between(1, 2)};
        shape.heads *= shape.group;
        shape.heads_first = chance();
        if (chance()) shape.type = f16;
        return shape;
    }
    AttentionTiles random_tiles(const AttentionShape& shape) {
        AttentionTiles tiles;
        tiles.rows = 64 * between(1, 2);
        tiles.keys = 16 * between(2, 5);
        tiles.overlaps = chance();
        tiles.persistent = chance();
        tiles.query_stages = tiles.persistent ? between(1, 2) : 1;
        tiles.stage_result = shape.width % 8 == 0 && chance();
        tiles.stage_pairs = chance();
        tiles.lazy = chance();
        return tiles;
    }

    void expect_formula(const Attention& a, const AttentionShape& shape, const Bindings& bindings) {
        const AttentionTiles tiles = random_tiles(shape);
        const Schedule s = attention_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, bindings, near(64, 2e-2));
        expect_compiles(build(s));
    }
    Bindings data(const Attention& a, unsigned seed) { return random_bindings({a.o, a.lse}, seed); }
};
TW_ON_EACH_DEVICE(ScoreRules);

TEST_P(ScoreRules, SoftCapsAndBiases) {
    for (unsigned round = 0; round < 6; ++round) {
        const AttentionShape shape = random_shape();
        const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
        std::vector<ScoreRule> rules;
        if (chance()) rules.push_back(linear_bias(input("slopes", f32, {H})));
        if (chance())
            rules.push_back(additive_bias(
                input("bias", chance() ? shape.type : f32,
                      {chance() ? B : int64_t{1}, chance() ? H : int64_t{1}, chance() ? S : int64_t{1}, N})));
        if (chance() || rules.empty())
            rules.push_back(chance() ? soft_cap(between(1, 30)) : soft_cap_approx(between(1, 30)));
        const Attention a = declare_attention(shape, in_turn(rules));
        expect_formula(a, shape, data(a, round));
    }
}

/// Rows of a bias arrive with the keys, if boxes can be made of them and there is room.
TEST_P(ScoreRules, BiasesInBoxes) {
    for (unsigned round = 0; round < 5; ++round) {
        AttentionShape shape = random_shape();
        shape.keys = 8 * between(1, 25);
        if (round == 0) shape.causal = true, shape.keys = shape.rows = 136;
        const Type type = chance() ? shape.type : f32;
        const Tensor bias = input("bias", type, {1, shape.heads, shape.rows, shape.keys});
        const Tensor other = input("other", f32, {shape.rows, 1, shape.keys});
        ScoreRule rule = additive_bias(bias);
        if (chance() && shape.rows > 1)
            rule = in_turn({soft_cap(9), rule,
                            [&](const Expr& score, const ScorePlace& at) { return score * other(at.row, 0, at.key); }});
        const Attention a = declare_attention(shape, rule);
        EXPECT_EQ(a.of_pairs.empty(), shape.rows == 1);
        AttentionTiles tiles = attention_tiles(a, shape, device_target());
        EXPECT_EQ(tiles.stage_pairs, shape.rows > 1);
        tiles.keys = std::min<int64_t>(tiles.keys, 64);
        const Schedule s = attention_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, data(a, round), near(64, 2e-2));
        expect_compiles(build(s));
    }
}

/// What is bounded, or nothing at a row's own key, is subtracted in one instruction with its factor; what may be any
/// number, before.
TEST(ScoreRuleTiles, SubtractFirstWhatIsFar) {
    const Tensor mask = input("mask", f32, {1, 64}), slopes = input("slopes", f32, {2}),
                 numbers = input("numbers", i32, {1, 64}), bias = input("bias", bf16, {1, 1, 64, 64});
    const ScoreRule left_out = [&](const Expr& score, const ScorePlace& at) {
        return select(mask(at.batch, at.key) > 0.0, score, -infinity);
    };
    const ScoreRule masked = [&](const Expr& score, const ScorePlace& at) {
        return score + (1.0 - mask(at.batch, at.key)) * -1e9;
    };
    auto by_documents = [&](const Tensor& of_keys) {  // of one table, a row's own key is in its document
        return [=](const Expr& score, const ScorePlace& at) {
            return select(numbers(at.batch, at.row) == of_keys(at.batch, at.key), score, -1e9);
        };
    };
    const Tensor other = input("other", i32, {1, 64});
    const ScoreRule by_places = [](const Expr& score, const ScorePlace& at) {
        return select(at.key <= at.position, score, -1e9);  // a row's own key is never masked
    };
    const ScoreRule scaled = [&](const Expr& score, const ScorePlace& at) { return score * slopes(at.head) + 3.0; };
    for (const ScoreRule& near :
         {ScoreRule(), soft_cap(50), linear_bias(slopes), sliding_window(9), left_out, scaled, by_places,
          ScoreRule(by_documents(numbers)), documents(numbers, numbers), in_turn({soft_cap(9), linear_bias(slopes)})})
        EXPECT_FALSE(may_add_far(near));
    for (const ScoreRule& far :
         {masked, ScoreRule(by_documents(other)), additive_bias(bias), in_turn({linear_bias(slopes), masked})})
        EXPECT_TRUE(may_add_far(far));
    EXPECT_FALSE(may_add_far(in_turn({masked, soft_cap(50)})));
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 64, .keys = 64, .depth = 16, .width = 16};
    EXPECT_EQ(declare_attention(shape, masked).results().size(), 4U);
    EXPECT_EQ(declare_attention(shape, left_out).results().size(), 2U);
}

/// Of elements that are read at two places, or once for all of several, boxes and gradients are not those of a bias.
TEST(ScoreRuleTiles, PairsAreReadAtOnePlace) {
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 64, .keys = 64, .depth = 16, .width = 16};
    const Tensor bias = input("bias", f32, {2, 64, 64});
    auto pairs_of = [&](const ScoreRule& rule) { return declare_attention(shape, rule).of_pairs.size(); };
    EXPECT_EQ(pairs_of([&](const Expr& s, const ScorePlace& at) { return s + bias(at.head, at.row, at.key); }), 1U);
    EXPECT_EQ(pairs_of([&](const Expr& s, const ScorePlace& at) {
                  return s + bias(at.head, at.row, at.key) + bias(at.head, at.key, at.row);
              }),
              0U);
    EXPECT_EQ(pairs_of([&](const Expr& s, const ScorePlace& at) { return s + bias(0, at.row, at.key); }), 0U);
}

TEST(ScoreRuleTiles, FitWhatRulesRead) {
    const Target target = tw::target("sm_90a");
    auto tiles_of = [&](int64_t depth, int64_t keys, Type type) {
        const AttentionShape shape{.batch = 2, .heads = 16, .rows = 4096, .keys = keys, .depth = depth, .width = depth};
        const Attention a = declare_attention(shape, additive_bias(input("bias", type, {1, 16, 4096, keys})));
        const AttentionTiles tiles = attention_tiles(a, shape, target);
        EXPECT_NO_THROW(build(attention_schedule(a, shape, tiles, target)));
        return tiles;
    };
    EXPECT_TRUE(tiles_of(128, 4096, f32).stage_pairs);
    EXPECT_EQ(tiles_of(128, 4096, f32).keys, 96);
    EXPECT_EQ(tiles_of(128, 4096, bf16).keys, 128);
    EXPECT_EQ(tiles_of(64, 4096, f32).keys, 96);
    EXPECT_EQ(tiles_of(64, 4096, bf16).keys, 128);
    EXPECT_TRUE(tiles_of(256, 4096, bf16).stage_pairs);
    EXPECT_FALSE(tiles_of(128, 4095, f32).stage_pairs);  // rows of 16380 bytes
}

TEST_P(ScoreRules, Windows) {
    for (unsigned round = 0; round < 5; ++round) {
        AttentionShape shape = random_shape();
        shape.keys = shape.rows = between(100, 300);
        const ScoreRule window = sliding_window(between(1, 120));
        const Attention a = declare_attention(shape, chance() ? in_turn({soft_cap(20), window}) : window, true);
        expect_formula(a, shape, data(a, round));
    }
}

TEST_P(ScoreRules, Documents) {
    for (unsigned round = 0; round < 4; ++round) {
        AttentionShape shape = random_shape();
        shape.keys = shape.rows;
        shape.causal = chance();
        const Tensor numbers = input("documents", i32, {shape.batch, shape.rows});
        const Attention a = declare_attention(shape, documents(numbers, numbers));
        Bindings bindings = data(a, round);
        HostArray& of_rows = bindings.inputs.at("documents");
        for (int64_t b = 0; b < shape.batch; ++b)
            for (int64_t i = 0, now = 0; i < shape.rows; ++i) {
                of_rows.set({b, i}, make_value(i32, now));
                if (between(0, 20) == 0) ++now;
            }
        expect_formula(a, shape, bindings);
    }
}

/// A rule of a user: the first keys for all, the others causally; and what softmax divides by may have more in it.
TEST_P(ScoreRules, OfUsers) {
    AttentionShape shape{.batch = 1, .heads = 2, .rows = 200, .keys = 200, .depth = 64, .width = 64};
    const Tensor prefix = input("prefix", i32, {1});
    const Attention a = declare_attention(shape, [&](const Expr& score, const ScorePlace& at) {
        return select(at.key <= at.row || at.key < cast(i64, prefix(at.batch)), score, -infinity);
    });
    Bindings bindings = data(a, 3);
    bindings.inputs.at("prefix").set({0}, make_value(i32, int64_t{77}));
    expect_formula(a, shape, bindings);
}

/// A score for each head that takes part in the softmax and has no value, far above all others, far below, and beside.
TEST_P(ScoreRules, Sinks) {
    for (unsigned round = 0; round < 4; ++round) {
        AttentionShape shape = random_shape();
        shape.causal = chance();
        if (shape.causal) shape.keys = shape.rows;
        const Tensor sinks = input("sinks", f32, {shape.heads});
        const Attention a = declare_attention(shape, chance() ? soft_cap(20) : ScoreRule(), false, {}, sinks);
        Bindings bindings = data(a, round);
        for (int64_t h = 0; h < shape.heads; ++h)
            bindings.inputs.at("sinks").set({h}, make_value(f32, std::array{0.5, -200.0, 4.0, 200.0}[(h + round) % 4]));
        expect_formula(a, shape, bindings);
    }
}

/// What the formula with sinks means: a softmax of one more key, whose value is 0.
TEST(Sinks, AreKeysWithoutValues) {
    const AttentionShape shape{.batch = 2, .heads = 2, .rows = 5, .keys = 7, .depth = 8, .width = 8};
    const Tensor sinks = input("sinks", f32, {2});
    const Attention a = declare_attention(shape, {}, false, {}, sinks);
    const Axis j = reduce_axis("j", 8), of_total = reduce_axis("of_total", 8);
    const Tensor scores = compute("scores", {2, 2, 5, 8}, [&](Expr b, Expr h, Expr i, Expr key) {
        return select(key < 7, a.s(b, h, i, min(key, 6)) * (1 / std::sqrt(8.0)), sinks(h));
    });
    const Tensor o = compute("o", {2, 5, 2, 8}, [&](Expr b, Expr i, Expr h, Expr e) {
        const Expr value = select(j < 7, cast(f32, a.v(b, min(j, 6), h, e)), 0.0);
        return cast(bf16, sum(exp(scores(b, h, i, j)) * value, j) / sum(exp(scores(b, h, i, of_total)), of_total));
    });
    const Tensor lse = compute(
        "lse", {2, 2, 5}, [&](Expr b, Expr h, Expr i) { return log2(sum(exp(scores(b, h, i, of_total)), of_total)); });
    const Bindings bindings = random_bindings({a.o, a.lse}, 4);
    const std::vector<HostArray> got = interpret_plain({a.o, a.lse}, bindings, Precision::Float64),
                                 expected = interpret_plain({o, lse}, bindings, Precision::Float64);
    for (size_t k = 0; k < got.size(); ++k) {
        auto differs = difference(k == 0 ? "o" : "lse", got[k], expected[k], near(0, 1e-6));  // factors are f32
        EXPECT_FALSE(differs) << *differs;
    }
}

/// Dropout: the same elements as declared, whatever the tiles.
TEST_P(ScoreRules, OfWeights) {
    for (unsigned round = 0; round < 3; ++round) {
        AttentionShape shape = random_shape();
        shape.causal = chance();
        if (shape.causal) shape.keys = shape.rows;
        const WeightRule rule = weight_dropout(0.3, scalar("seed", u32), shape.heads, shape.rows, shape.keys);
        const Attention a = declare_attention(shape, chance() ? soft_cap(20) : ScoreRule(), false, rule);
        Bindings bindings = data(a, round);
        bindings.scalars["seed"] = make_value(u32, int64_t{round} + 11);
        for (int tiling = 0; tiling < 2; ++tiling) expect_formula(a, shape, bindings);
    }
}

/// Weights follow one another nowhere: neighbours of a row, of a column, and of other heads have calls or words of
/// their own.
TEST(WeightDropout, KeepsItsShare) {
    const WeightRule rule = weight_dropout(0.4, 5u, 3, 31, 45);
    const Tensor mask = compute("mask", {2, 3, 31, 45}, [&](Expr b, Expr h, Expr i, Expr j) {
        return rule(constant(f32, 0.6), {b, h, i, j});
    });
    const HostArray kept = interpret_plain({mask}, {})[0];
    std::array<double, 4> pairs{};
    double all = 0, share = 0;
    for (std::vector<int64_t> at(4, 0); all == 0 || advance(at, kept.shape); ++all) {
        const bool here = kept.at(at).real != 0;
        share += here;
        for (size_t d = 0; d < 4; ++d) {
            std::vector<int64_t> next = at;
            next[d] = (next[d] + 1) % kept.shape[d];
            pairs[d] += here && kept.at(next).real != 0;
        }
    }
    EXPECT_NEAR(share / all, 0.6, 5 * std::sqrt(0.24 / all));
    for (double pair : pairs) EXPECT_NEAR(pair / all, 0.36, 7 * std::sqrt(0.36 * 0.64 / all));
}

TEST(ScoreRuleErrors, SayWhatToGive) {
    EXPECT_ERROR(soft_cap(0), "soft_cap(0): scores stay between -cap and cap; give a cap above 0");
    EXPECT_ERROR(weight_dropout(1.5, 5u, 1, 1, 1), "is_kept: a probability of 1.5 leaves nothing to scale");
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 4, .keys = 4, .depth = 8, .width = 8};
    EXPECT_ERROR(declare_attention(shape, {}, false, {}, input("sinks", bf16, {2, 1})),
                 "attention: sinks 'sinks' are bf16 of 2 dimensions; give a score for each head, f32 [2]");
    auto of_one_row = [](bool backward, const ScoreRule& rule) {
        const AttentionShape one{.batch = 1, .heads = 2, .rows = 1, .keys = 8, .depth = 8, .width = 8};
        if (backward) declare_attention_gradients(one, {}, rule);
        declare_attention(one, rule);
    };
    for (const bool backward : {false, true}) {
        EXPECT_ERROR(of_one_row(backward, [](const Expr& score,
                                             const ScorePlace& at) { return select(at.key > 7, score, -infinity); }),
                     "attention: the rule for scores makes -infinity of all of them, at any place");
        EXPECT_ERROR(of_one_row(backward, [](const Expr&, const ScorePlace& at) { return cast(f32, at.key); }),
                     "let it return something of the score where rows see keys, and -infinity elsewhere");
    }
    EXPECT_ERROR(sliding_window(0), "sliding_window(0): rows see at least themselves, a width of 1");
    EXPECT_ERROR(soft_cap_approx(-1), "soft_cap_approx(-1): scores stay between -cap and cap; give a cap above 0");
    EXPECT_ERROR(linear_bias(input("x", f32, {2, 3})), "linear_bias(x): slopes have one dimension, [heads]");
    EXPECT_ERROR(additive_bias(input("x", f32, {2, 3})), "additive_bias(x): it has 4 dimensions");
    EXPECT_ERROR(documents(input("x", i32, {2}), input("y", i32, {2, 3})), "documents(.. x ..): numbers have two");
}

}  // namespace
}  // namespace tw::schedules

// Attention with masks that add large finite numbers, of any size, to scores: rows that they mask altogether have the
// softmax of what f32 leaves of their scores, forward and backward. By the formula in float64, of scores that are
// rounded to f32 where the mask is added. Operands are such that nothing else is rounded there.
#include <array>
#include <cmath>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/program.h"
#include "schedules/attention_backward.h"
#include "schedules/attention_decode.h"
#include "schedules/attention_ranged.h"
#include "schedules/ranged_gradients.h"
#include "schedules/varlen_gradients.h"
#include "tests/ops/random_cases.h"
#include "tests/schedules/packed_formula.h"

namespace tw::schedules {
namespace {

/// Of batches as of sequences that have all the same rows and keys.
struct Case {
    AttentionShape shape;
    AttentionRules rules;
    bool of_pairs;  ///< a number for each row and key, not for each key
    float far;
};

class AddedMasks : public RandomCases {
protected:
    AddedMasks() : RandomCases(401) {}

    Case random_case() {
        Case c;
        c.shape = {.batch = between(1, 3),
                   .heads = between(1, 2),
                   .rows = between(1, 110),
                   .keys = between(1, 110),
                   .depth = chance() ? 16 : 64,  // whose factor is exact
                   .width = 8 * between(1, 8),
                   .group = between(1, 2),
                   .causal = chance()};
        if (chance()) c.shape.type = f16;
        if (c.shape.causal) c.shape.keys = c.shape.rows;
        c.shape.heads *= c.shape.group;
        c.far = -static_cast<float>(std::pow(10, between(4, 37)) * between(10, 99) / 10);
        c.of_pairs = chance();
        const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = c.shape;
        const Tensor of_keys = input("mask", f32, {B, N}), of_pairs = input("mask", f32, {B, S, N});
        const double far = c.far;
        if (c.of_pairs)
            c.rules.score = [=](const Expr& score, const ScorePlace& at) {
                return score + of_pairs(at.batch, at.row, at.key) * far;
            };
        else
            c.rules.score = [=](const Expr& score, const ScorePlace& at) {
                return score + (1.0 - of_keys(at.batch, at.key)) * far;
            };
        if (chance()) c.rules.sinks = input("sinks", f32, {H});
        return c;
    }

    /// Padding in front, so that causal rows, or all of them, see masked keys alone; or masks of rows.
    void fill(Bindings& launch, const Case& c) {
        for (const char* name : {"q", "k"}) {
            HostArray& of = launch.inputs.at(name);
            std::vector<int64_t> at(of.shape.size(), 0);
            do of.set(at, make_value(of.type, between(-8, 8) / 8.0));
            while (advance(at, of.shape));
        }
        HostArray& mask = launch.inputs.at("mask");
        for (int64_t b = 0; b < c.shape.batch; ++b) {
            const int64_t padding = between(0, 2) == 0 ? c.shape.keys : between(0, static_cast<int>(c.shape.keys));
            for (int64_t i = 0; i < (c.of_pairs ? c.shape.rows : 1); ++i) {
                const int kind = between(0, 3);
                for (int64_t j = 0; j < c.shape.keys; ++j) {
                    const bool padded = kind == 0 || (kind == 1 ? chance() : j < padding);
                    if (c.of_pairs)
                        mask.set({b, i, j}, make_value(f32, padded ? (kind == 2 && chance() ? 2.0 : 1.0) : 0.0));
                    else
                        mask.set({b, j}, make_value(f32, j < padding ? 0.0 : 1.0));
                }
            }
        }
    }

    static HostArray reshaped(HostArray array, const std::vector<int64_t>& shape) {
        array.shape = shape, array.strides = dense_strides(shape);
        return array;
    }
    /// The reference takes each batch as a packed sequence.
    static PackedResults expected(const Case& c, const Bindings& launch) {
        const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = c.shape;
        const VarlenShape shape{B * S, B * N, H, D, E, G, type};
        Bindings packed = launch;
        for (auto& [name, array] : packed.inputs)
            if (array.shape.size() == 4)
                array = reshaped(array, {array.shape[0] * array.shape[1], array.shape[2], array.shape[3]});
        Offsets of_rows, of_keys;
        for (int64_t b = 0; b <= B; ++b) of_rows.push_back(b * S), of_keys.push_back(b * N);
        Varied varied;
        varied.rules = c.rules;
        varied.score = [&](double score, const Place& at) {
            const HostArray& mask = launch.inputs.at("mask");
            const double times =
                c.of_pairs ? mask.at({at.batch, at.row, at.key}).real : 1 - mask.at({at.batch, at.key}).real;
            return static_cast<double>(static_cast<float>(score + times * c.far));
        };
        return PackedFormula(shape, varied, packed).of(of_rows, of_keys, causal);
    }

    std::vector<HostArray> run(const Schedule& s, const Bindings& launch) {
        Executable executable(build(s), device_);
        return run_on(executable, launch);
    }
    static void expect_near(const std::string& name, const HostArray& got, const HostArray& expected,
                            double roundings) {
        const double error = roundings * std::max(largest(expected), 1e-2);
        auto differs = difference(name, reshaped(got, expected.shape), expected, near(0, error));
        EXPECT_FALSE(differs) << *differs;
    }
    static void expect_forward(const Case& c, const std::vector<HostArray>& got, const PackedResults& expected) {
        expect_near("o", got[0], expected.o, 4 * unit_roundoff(c.shape.type));
    }
    static void expect_gradients(const Case& c, const std::vector<HostArray>& got, const PackedResults& expected) {
        const std::array wanted{&expected.dq, &expected.dk, &expected.dv, &expected.d_sinks};
        ASSERT_EQ(got.size(), c.rules.sinks.defined() ? 4U : 3U);
        for (size_t k = 0; k < got.size(); ++k)
            expect_near(std::array{"dq", "dk", "dv", "d_sinks"}[k], got[k], *wanted[k],
                        (k == 3 ? 20 : 6) * unit_roundoff(c.shape.type));
    }
    static void save(Bindings& launch, const std::vector<Tensor>& results, const std::vector<HostArray>& saved) {
        for (size_t k = 0; k < saved.size(); ++k) launch.inputs[results[k].name()] = saved[k];
    }
    GradientTiles random_tiles() {
        return {.key_rows = 64 * between(1, 2),
                .key_step = 16 * between(2, 4),
                .query_rows = 64 * between(1, 2),
                .query_step = 16 * between(2, 4),
                .passes = {.together = chance()}};
    }
    /// What gradients are made of beside the forward pass's inputs and results.
    static void add_inputs(Bindings& launch, const Schedule& s, unsigned seed) {
        for (auto& [name, array] : random_bindings(s.outputs(), seed).inputs) launch.inputs.try_emplace(name, array);
    }
};
TW_ON_EACH_DEVICE(AddedMasks);

TEST_P(AddedMasks, OfBatches) {
    for (unsigned round = 0; round < 7; ++round) {
        const Case c = random_case();
        SCOPED_TRACE(fmt::format("round {}: {}", round, c.far));
        const auto& [score, skips, weights, sinks] = c.rules;
        const Attention a = declare_attention(c.shape, score, false, {}, sinks);
        AttentionTiles tiles = attention_tiles(a, c.shape, device_target());
        tiles.lazy = chance();
        Bindings launch = random_bindings(a.results(), round);
        GradientTiles backward = random_tiles();
        backward.passes.kept = chance();
        const AttentionGradients gradients =
            declare_attention_gradients(c.shape, backward.passes, score, false, {}, sinks);
        const Schedule of_gradients = attention_gradients_schedule(gradients, c.shape, backward, device_target());
        add_inputs(launch, of_gradients, round);
        fill(launch, c);
        const PackedResults wanted = expected(c, launch);
        const std::vector<HostArray> got = run(attention_schedule(a, c.shape, tiles, device_target()), launch);
        expect_forward(c, got, wanted);
        save(launch, a.results(), got);
        expect_gradients(c, run(of_gradients, launch), wanted);
    }
}

TEST_P(AddedMasks, OfPackedSequences) {
    for (unsigned round = 0; round < 6; ++round) {
        Case c = random_case();
        SCOPED_TRACE(fmt::format("round {}: {}", round, c.far));
        const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = c.shape;
        const VarlenShape shape{B * S, B * N, H, D, E, G, type};
        Offsets of_rows, of_keys;
        for (int64_t b = 0; b <= B; ++b) of_rows.push_back(b * S), of_keys.push_back(b * N);
        const VarlenTiles tiles{.rows = 64 * between(1, 2), .keys = 16 * between(2, 5)};
        const VarlenAttention a = declare_varlen_attention(shape, tiles, c.rules);
        GradientTiles backward = random_tiles();
        backward.query_rows = tiles.rows;
        const VarlenGradients gradients = declare_varlen_gradients(shape, backward, {}, c.rules);
        const Schedule of_gradients = varlen_gradients_schedule(gradients, shape, backward, device_target());
        Bindings launch = random_bindings(a.results(), round);
        add_inputs(launch, of_gradients, round);
        fill(launch, c);
        set_tables(launch, varlen_tables(of_rows, of_keys, causal, tiles.rows));
        set_tables(launch, varlen_tables(of_rows, of_keys, causal, backward.key_rows, TilesOf::Keys), "_of_keys");
        const PackedResults wanted = expected(c, launch);
        const std::vector<HostArray> got = run(varlen_schedule(a, shape, tiles, device_target()), launch);
        expect_forward(c, got, wanted);
        save(launch, a.results(), got);
        expect_gradients(c, run(of_gradients, launch), wanted);
    }
}

TEST_P(AddedMasks, OfRanges) {
    for (unsigned round = 0; round < 4; ++round) {
        const Case c = random_case();
        SCOPED_TRACE(fmt::format("round {}: {}", round, c.far));
        const VarlenTiles tiles{.rows = 64 * between(1, 2), .keys = 16 * between(2, 5)};
        const RangedAttention a = declare_ranged_attention(c.shape, tiles, c.rules);
        GradientTiles backward = random_tiles();
        backward.query_rows = tiles.rows;
        const RangedGradients gradients = declare_ranged_gradients(c.shape, backward, c.rules);
        const Schedule of_gradients = ranged_gradients_schedule(gradients, c.shape, backward, device_target());
        Bindings launch = random_bindings(a.of.results(), round);
        add_inputs(launch, of_gradients, round);
        fill(launch, c);
        launch.inputs.at("ranges") =
            interpret_plain({declare_key_ranges(c.shape, c.rules.score, tiles.rows).ranges}, launch)[0];
        const PackedResults wanted = expected(c, launch);
        const std::vector<HostArray> got = run(ranged_schedule(a, c.shape, tiles, device_target()), launch);
        expect_forward(c, got, wanted);
        save(launch, a.of.results(), got);
        expect_gradients(c, run(of_gradients, launch), wanted);
    }
}

/// Of one row, by parts of the keys, some of which are masked altogether.
TEST_P(AddedMasks, OfDecoding) {
    for (unsigned round = 0; round < 6; ++round) {
        Case c = random_case();
        c.shape.causal = false;
        if (c.of_pairs || c.shape.rows > 1) {  // of the keys
            c.of_pairs = false, c.shape.rows = 1;
            const Tensor mask = input("mask", f32, {c.shape.batch, c.shape.keys});
            c.rules.score = [=](const Expr& score, const ScorePlace& at) {
                return score + (1.0 - mask(at.batch, at.key)) * static_cast<double>(c.far);
            };
        }
        SCOPED_TRACE(fmt::format("round {}: {}", round, c.far));
        const DecodeTiles tiles{.keys = 16 * between(1, 4), .parts = between(1, 4)};
        const Schedule s = decode_schedule(c.shape, tiles, device_target(), c.rules);
        Bindings launch = random_bindings(s.outputs(), round);
        fill(launch, c);
        expect_forward(c, run(s, launch), expected(c, launch));
    }
}

}  // namespace
}  // namespace tw::schedules

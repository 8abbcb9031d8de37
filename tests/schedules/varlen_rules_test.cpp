// Attention of packed sequences by rules of users, forward and backward: by the formula, in float64, of each sequence.
#include <array>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "schedules/varlen_gradients.h"
#include "tests/ops/random_cases.h"
#include "tests/schedules/packed_formula.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

class VarlenRules : public RandomCases {
protected:
    VarlenRules() : RandomCases(173) {}

    Offsets random_offsets(int sequences, int longest) {
        Offsets offsets{0};
        for (int b = 0; b < sequences; ++b)
            offsets.push_back(offsets.back() + (between(0, 2) == 0 ? between(0, 1) : between(0, longest)));
        offsets.back() += offsets.back() == 0 ? 1 : 0;
        return offsets;
    }
    VarlenShape random_shape(const Offsets& of_rows, const Offsets& of_keys) {
        VarlenShape shape{.rows = of_rows.back(),
                          .keys = of_keys.back(),
                          .heads = between(1, 2),
                          .depth = 8 * between(1, 6),
                          .width = 8 * between(1, 6),
                          .group = between(1, 2)};
        shape.heads *= shape.group;
        if (chance()) shape.type = f16;
        return shape;
    }
    SeenKeys random_seen() {
        switch (between(0, 3)) {
            case 0: return false;
            case 1: return true;
            case 2: return SeenKeys::window(between(1, 60));
            default: return {between(0, 40), between(0, 40)};
        }
    }

    /// A rule of each kind in turn: the last one reads tensors at places, and leaves some rows no key.
    Varied rules(unsigned kind, const VarlenShape& shape, const Bindings& launch) {
        Varied of;
        const double cap = 3;
        const int64_t width = between(1, 40);
        switch (kind) {
            case 0:
                of.rules.score = soft_cap(cap);
                of.score = [=](double score, const Place&) { return cap * std::tanh(score / cap); };
                of.slope = [=](double score, const Place&) { return 1 - std::pow(std::tanh(score / cap), 2); };
                break;
            case 1:
                of.rules.score = linear_bias(input("slopes", f32, {shape.heads}));
                of.score = [&launch](double score, const Place& at) {
                    return score +
                           launch.inputs.at("slopes").at({at.head}).real * static_cast<double>(at.key - at.position);
                };
                break;
            case 2:
                of.rules.score = sliding_window(width);
                of.score = [=](double score, const Place& at) {
                    const bool is_seen = at.key <= at.position && at.position - at.key < width;
                    return is_seen ? score : -std::numeric_limits<double>::infinity();
                };
                break;
            default: {
                const Tensor factors = input("factors", f32, {shape.heads, shape.rows, 5});
                of.rules.score = [=](const Expr& score, const ScorePlace& at) {
                    const Expr factor = factors(at.head, at.row, at.key % 5);
                    return select((at.batch + at.row) % 4 == 0 || at.key % 6 == 1, -infinity, score * factor);
                };
                auto factor = [&launch](const Place& at) {
                    return launch.inputs.at("factors").at({at.head, at.row, at.key % 5}).real;
                };
                of.score = [=](double score, const Place& at) {
                    const bool is_left_out = (at.batch + at.row) % 4 == 0 || at.key % 6 == 1;
                    return is_left_out ? -std::numeric_limits<double>::infinity() : score * factor(at);
                };
                of.slope = [=](double, const Place& at) { return factor(at); };
            }
        }
        return of;
    }
    void vary_more(Varied& of, const VarlenShape& shape) {
        if (chance()) of.rules.sinks = input("sinks", f32, {shape.heads});
        if (chance()) return;
        of.rules.weights = [](const Expr& weight, const ScorePlace& at) {
            return select((at.row + at.key + at.batch) % 3 == 0, 0.0, weight * 1.5);
        };
        of.weight = [](const Place& at) { return (at.row + at.key + at.batch) % 3 == 0 ? 0 : 1.5; };
    }

    static void expect_near(const std::string& name, const HostArray& got, const HostArray& expected, double error) {
        auto differs = difference(name, got, expected, near(0, error));
        EXPECT_FALSE(differs) << *differs;
    }
};
TW_ON_EACH_DEVICE(VarlenRules);

TEST_P(VarlenRules, OfScoresWeightsAndSinks) {
    for (unsigned round = 0; round < 5; ++round) {
        const int sequences = between(1, 5);
        const Offsets of_rows = random_offsets(sequences, 65),
                      of_keys = chance() ? of_rows : random_offsets(sequences, 75);
        const SeenKeys seen = random_seen();
        const VarlenShape shape = random_shape(of_rows, of_keys);
        Bindings launch;
        Varied varied = rules(round % 4, shape, launch);
        vary_more(varied, shape);
        const VarlenTiles tiles{.rows = 64 * between(1, 2), .keys = 16 * between(2, 5), .stages = between(2, 3)};
        const VarlenAttention a = declare_varlen_attention(shape, tiles, varied.rules);
        const Schedule s = varlen_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        launch = random_bindings({a.o, a.lse}, round);
        EXPECT_EQ(launch.inputs.contains("places"), round % 4 != 0 || varied.rules.weights != nullptr);
        set_tables(launch, varlen_tables(of_rows, of_keys, seen, tiles.rows));
        const PackedResults expected = PackedFormula(shape, varied, launch).of(of_rows, of_keys, seen);
        Executable executable(build(s), device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        expect_near("o", got[0], expected.o, 4 * unit_roundoff(shape.type) * largest(expected.o));
        expect_near("lse", got[1], expected.lse, 2e-3);
        if (round < 4) expect_compiles(executable.program());  // a kernel of each kind
    }
}

TEST_P(VarlenRules, OfGradients) {
    for (unsigned round = 0; round < 5; ++round) {
        const int sequences = between(1, 5);
        const Offsets of_rows = random_offsets(sequences, 50),
                      of_keys = chance() ? of_rows : random_offsets(sequences, 60);
        const SeenKeys seen = random_seen();
        const VarlenShape shape = random_shape(of_rows, of_keys);
        Bindings launch;
        Varied varied = rules(round % 4, shape, launch);
        vary_more(varied, shape);
        const GradientTiles tiles{.key_rows = 64 * between(1, 2),
                                  .key_step = 16 * between(2, 4),
                                  .query_rows = 64 * between(1, 2),
                                  .query_step = 16 * between(2, 4),
                                  .passes = {.together = chance()}};
        const VarlenGradients a = declare_varlen_gradients(shape, tiles, {}, varied.rules);
        const Schedule s = varlen_gradients_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        launch = random_bindings(s.outputs(), round);
        set_tables(launch, varlen_tables(of_rows, of_keys, seen, tiles.query_rows));
        set_tables(launch, varlen_tables(of_rows, of_keys, seen, tiles.key_rows, TilesOf::Keys), "_of_keys");
        const PackedResults expected = PackedFormula(shape, varied, launch).of(of_rows, of_keys, seen);
        set_saved(launch, expected);
        Executable executable(build(s), device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        const std::array wanted{&expected.dq, &expected.dk, &expected.dv, &expected.d_sinks};
        ASSERT_EQ(got.size(), varied.rules.sinks.defined() ? 4U : 3U);
        for (size_t k = 0; k < got.size(); ++k)
            expect_near(s.outputs()[k].name(), got[k], *wanted[k],
                        (k == 3 ? 20 : 4) * unit_roundoff(shape.type) * largest(*wanted[k]));
        if (round < 4) expect_compiles(executable.program());  // a kernel of each kind
    }
}

/// Tables of windows say by distances what rows and keys see, on the host and of a kernel; tiles go no further.
TEST_P(VarlenRules, HaveTablesOfWindows) {
    for (unsigned round = 0; round < 8; ++round) {
        const int sequences = between(1, 6);
        const int64_t of_tile = 16 * between(1, 4);
        const TilesOf side = chance() ? TilesOf::Rows : TilesOf::Keys;
        const bool by_rows = side == TilesOf::Rows;
        const Offsets of_rows = random_offsets(sequences, 60), of_keys = random_offsets(sequences, 70);
        const SeenKeys seen = random_seen();
        const VarlenTables host = varlen_tables(of_rows, of_keys, seen, of_tile, side);
        double pairs = 0;
        for (size_t b = 0; b + 1 < of_rows.size(); ++b)
            for (int64_t i = of_rows[b]; i < of_rows[b + 1]; ++i)
                for (int64_t j = of_keys[b]; j < of_keys[b + 1]; ++j) {
                    const int64_t position =
                                      i - of_rows[b] + (of_keys[b + 1] - of_keys[b]) - (of_rows[b + 1] - of_rows[b]),
                                  key = j - of_keys[b], own = by_rows ? i : j,
                                  other = (by_rows ? j : i) - host.tiles.at({own / of_tile, 0}).integer;
                    const bool wanted = key >= position - seen.before && key <= position + seen.behind;
                    pairs += wanted;
                    ASSERT_EQ(host.seen.at({own, 0}).integer <= other && other < host.seen.at({own, 1}).integer, wanted)
                        << "row " << i << ", key " << j;
                    EXPECT_TRUE(!wanted || other < host.tiles.at({own / of_tile, 1}).integer);
                    auto place = [&](VarlenPlace what) {
                        return host.places.at({own, static_cast<int64_t>(what)}).integer;
                    };
                    EXPECT_EQ(place(VarlenPlace::Sequence), static_cast<int64_t>(b));
                    EXPECT_EQ(place(VarlenPlace::Own), own - (by_rows ? of_rows[b] : of_keys[b]));
                    EXPECT_EQ(other + place(VarlenPlace::Other), by_rows ? key : i - of_rows[b]);
                    EXPECT_EQ(i - of_rows[b] + place(VarlenPlace::MoreKeys), position);
                }
        EXPECT_EQ(varlen_pairs(of_rows, of_keys, seen), pairs);
        const VarlenTableTensors tensors =
            declare_varlen_tables(sequences, of_rows.back(), of_keys.back(), seen, of_tile, side);
        const Schedule s = varlen_tables_schedule(tensors, device_target(), true);
        Bindings launch = random_bindings(s.outputs(), round);
        for (int64_t b = 0; b <= sequences; ++b) {
            launch.inputs.at("of_rows").set({b}, make_value(i32, of_rows[static_cast<size_t>(b)]));
            launch.inputs.at("of_keys").set({b}, make_value(i32, of_keys[static_cast<size_t>(b)]));
        }
        expect_declared(s, launch);
        const std::vector<HostArray> made = interpret_plain(s.outputs(), launch);
        const std::array wanted{&host.tiles, &host.seen, &host.places};
        for (size_t k = 0; k < wanted.size(); ++k)
            EXPECT_EQ(difference(s.outputs()[k].name(), made[k], *wanted[k], bitwise), std::nullopt);
    }
}

/// By gradients(), of the forward pass's declaration, rules and sinks among what it was given.
TEST_P(VarlenRules, OfGradientsOfItsDeclaration) {
    const Offsets offsets{0, 5, 5, 14, 23};
    const VarlenShape shape{.rows = 23, .keys = 23, .heads = 2, .depth = 8, .width = 16, .group = 2, .type = f16};
    const VarlenTiles forward{.rows = 16, .keys = 16};
    const GradientTiles tiles{.key_rows = 8, .key_step = 16, .query_rows = 16, .query_step = 16};
    for (unsigned kind = 0; kind < 4; ++kind) {
        Bindings launch;
        Varied varied = rules(kind, shape, launch);
        varied.rules.sinks = input("sinks", f32, {2});
        const VarlenAttention a = declare_varlen_attention(shape, forward, varied.rules);
        const Tensor o = with_varlen_gradients(a, shape, forward, tiles), g = input("g", f16, {23, 2, 16});
        const std::vector<Tensor> made = gradients(o, g, {a.q, a.k, a.v, varied.rules.sinks});
        launch = random_bindings(made, 9);
        set_tables(launch, varlen_tables(offsets, offsets, true, forward.rows));
        set_tables(launch, varlen_tables(offsets, offsets, true, tiles.key_rows, TilesOf::Keys), "_of_keys");
        const PackedResults expected = PackedFormula(shape, varied, launch).of(offsets, offsets, true);
        Executable executable(build(choose_schedule(made, device_target())), device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        const std::array wanted{&expected.dq, &expected.dk, &expected.dv, &expected.d_sinks};
        for (size_t k = 0; k < wanted.size(); ++k)
            expect_near(made[k].name(), got[k], *wanted[k],
                        (k == 3 ? 20 : 4) * unit_roundoff(f16) * std::max(largest(*wanted[k]), 0.05));
    }
}

TEST(VarlenRuleNames, SayWhatIsAsked) {
    EXPECT_EQ(parse_varlen("attention_varlen_bf16_300x12x40_keys500_softcap30_alibi_sinks_tile64x32s3")->rules,
              "_softcap30_alibi_sinks");
    EXPECT_EQ(parse_varlen_gradients("attention_varlen_gradients_bf16_300x12x40_window9")->rules, "_window9");
    const auto tables = parse_varlen_tables("attention_varlen_tables_8x300_window64_places_of_keys");
    ASSERT_TRUE(tables);
    EXPECT_TRUE(tables->seen.before == 63 && tables->seen.behind == 0 && tables->places &&
                tables->side == TilesOf::Keys);
    for (const char* name :
         {"attention_varlen_bf16_300x12x40_documents", "attention_varlen_bf16_300x12x40_bias",
          "attention_varlen_tables_8x300_causal_window64", "attention_varlen_bf16_300x12x40_window0"})
        EXPECT_FALSE(find_kernel(name)) << name;
    for (const char* name : {"attention_varlen_bf16_300x4x128_softcap30a_alibi_window100_sinks",
                             "attention_varlen_tables_8x300_window64_places",
                             "attention_varlen_gradients_bf16_301x4x128_softcap30_alibi_window100_sinks"})
        EXPECT_NO_THROW(build(find_kernel(name)->make(tw::target("sm_90a")))) << name;
}

TEST(VarlenRuleErrors, SayWhatToGive) {
    const VarlenShape shape{.rows = 8, .keys = 8, .heads = 2, .depth = 8, .width = 8};
    EXPECT_ERROR(varlen_tables({0, 3}, {0, 3}, SeenKeys::window(0), 64),
                 "varlen tables: rows see -1 keys before them and 0 behind; give 0 at least, a window of 1");
    EXPECT_ERROR(declare_varlen_attention(shape, {}, {.sinks = input("sinks", f32, {3})}),
                 "give a score for each head, f32 [2]");
    const AttentionRules of_conditions{
        .score = [](const Expr&, const ScorePlace& at) { return at.key <= at.position; }};
    EXPECT_ERROR(declare_varlen_attention(shape, {}, of_conditions),
                 "the rule for scores returns a condition; to leave out keys where it does not hold, return "
                 "select(condition, score, -infinity)");
    EXPECT_ERROR(declare_varlen_gradients(shape, {}, {}, of_conditions), "the rule for scores returns a condition");
}

}  // namespace
}  // namespace tw::schedules

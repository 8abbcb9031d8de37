// Gradients of attention of packed sequences: tables of keys, and results of sequences of any lengths.
#include "schedules/varlen_gradients.h"

#include <array>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "tests/ops/random_cases.h"
#include "tests/schedules/packed_formula.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

/// The sequence of an element.
size_t sequence_of(const Offsets& offsets, int64_t element) {
    return static_cast<size_t>(std::ranges::upper_bound(offsets, element) - offsets.begin()) - 1;
}

bool sees(const Offsets& of_rows, const Offsets& of_keys, bool causal, int64_t row, int64_t key) {
    const size_t b = sequence_of(of_rows, row);
    if (b != sequence_of(of_keys, key)) return false;
    return !causal || of_keys[b + 1] - key > of_rows[b + 1] - 1 - row;
}

class VarlenGradientKernels : public RandomCases {
protected:
    VarlenGradientKernels() : RandomCases(152) {}

    Offsets random_offsets(int sequences, int longest) {
        Offsets offsets{0};
        for (int b = 0; b < sequences; ++b)
            offsets.push_back(offsets.back() + (between(0, 2) == 0 ? between(0, 1) : between(0, longest)));
        return offsets;
    }

    VarlenShape random_shape(const Offsets& of_rows, const Offsets& of_keys, int64_t group) {
        VarlenShape shape{.rows = of_rows.back(),
                          .keys = of_keys.back(),
                          .heads = between(1, 2),
                          .depth = 8 * between(1, 9),
                          .width = 8 * between(1, 9),
                          .group = group};
        shape.heads *= shape.group;
        if (chance()) shape.type = f16;
        return shape;
    }
};
TW_ON_EACH_DEVICE(VarlenGradientKernels);

TEST_P(VarlenGradientKernels, GiveEachSequenceItsOwn) {
    for (unsigned round = 0; round < 6; ++round) {
        const bool causal = chance(), same = chance();
        const int sequences = between(1, 6);
        const Offsets of_rows = random_offsets(sequences, 70), of_keys = same ? of_rows : random_offsets(sequences, 80);
        if (of_rows.back() == 0 || of_keys.back() == 0) continue;
        const VarlenShape shape = random_shape(of_rows, of_keys, 1 + round % 2);
        const GradientTiles tiles{.key_rows = 64 * between(1, 2),
                                  .key_step = 16 * between(2, 4),
                                  .query_rows = 64 * between(1, 2),
                                  .query_step = 16 * between(2, 4),
                                  .stages = between(2, 3),
                                  .passes = {.together = chance()}};
        const VarlenGradients a = declare_varlen_gradients(shape, tiles);
        const Schedule s = varlen_gradients_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings launch = random_bindings({a.dq, a.dk, a.dv}, round);
        const VarlenTables of_queries = varlen_tables(of_rows, of_keys, causal, tiles.query_rows),
                           by_keys = varlen_tables(of_rows, of_keys, causal, tiles.key_rows, TilesOf::Keys);
        set_tables(launch, of_queries);
        set_tables(launch, by_keys, "_of_keys");
        const PackedResults expected = PackedFormula(shape, {}, launch).of(of_rows, of_keys, causal);
        set_saved(launch, expected);
        Executable executable(build(s), device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        const std::array wanted{&expected.dq, &expected.dk, &expected.dv};
        for (size_t k = 0; k < wanted.size(); ++k) {
            const double error = 4 * unit_roundoff(shape.type) * largest(*wanted[k]);
            auto differs = difference(s.outputs()[k].name(), got[k], *wanted[k], near(0, error));
            EXPECT_FALSE(differs) << *differs;
        }
        expect_compiles(executable.program());
    }
}

/// What a key's range says is what rows' ranges say, on the host and of a kernel.
TEST_P(VarlenGradientKernels, HaveTablesOfThoseThatSee) {
    for (unsigned round = 0; round < 6; ++round) {
        const bool causal = chance();
        const int sequences = between(1, 7);
        const int64_t of_tile = 16 * between(1, 4);
        const Offsets of_rows = random_offsets(sequences, 60), of_keys = random_offsets(sequences, 70);
        if (of_rows.back() == 0 || of_keys.back() == 0) continue;
        const VarlenTables host = varlen_tables(of_rows, of_keys, causal, of_tile, TilesOf::Keys);
        for (int64_t j = 0; j < of_keys.back(); ++j) {
            const int64_t first = host.tiles.at({j / of_tile, 0}).integer,
                          count = host.tiles.at({j / of_tile, 1}).integer;
            EXPECT_EQ(first % rows_of_box, 0);
            EXPECT_LE(first + count, of_rows.back());
            for (int64_t i = 0; i < of_rows.back(); ++i) {
                const bool is_seen =
                    first + host.seen.at({j, 0}).integer <= i && i < first + host.seen.at({j, 1}).integer;
                ASSERT_EQ(is_seen, sees(of_rows, of_keys, causal, i, j)) << "row " << i << ", key " << j;
                EXPECT_TRUE(!is_seen || (first <= i && i < first + count));
            }
        }
        const VarlenTableTensors tensors =
            declare_varlen_tables(sequences, of_rows.back(), of_keys.back(), causal, of_tile, TilesOf::Keys);
        Bindings launch = random_bindings({tensors.tiles, tensors.seen}, round);
        for (int64_t b = 0; b <= sequences; ++b) {
            launch.inputs.at("of_rows").set({b}, make_value(i32, of_rows[static_cast<size_t>(b)]));
            launch.inputs.at("of_keys").set({b}, make_value(i32, of_keys[static_cast<size_t>(b)]));
        }
        expect_declared(varlen_tables_schedule(tensors, device_target()), launch);
        const std::vector<HostArray> made = interpret_plain({tensors.tiles, tensors.seen}, launch);
        EXPECT_EQ(difference("tiles", made[0], host.tiles, bitwise), std::nullopt);
        EXPECT_EQ(difference("seen", made[1], host.seen, bitwise), std::nullopt);
    }
}

TEST(VarlenGradients, AreAskedForByName) {
    const auto named =
        parse_varlen_gradients("attention_varlen_gradients_f16_300x12x40_keys500_group3_tile64x32q128x48s3a");
    ASSERT_TRUE(named);
    EXPECT_EQ((std::array{named->shape.rows, named->shape.keys, named->shape.heads, named->shape.depth}),
              (std::array<int64_t, 4>{300, 500, 12, 40}));
    EXPECT_TRUE(named->tiles->key_rows == 64 && named->tiles->key_step == 32 && named->tiles->query_rows == 128 &&
                named->tiles->query_step == 48 && named->tiles->stages == 3 && !named->tiles->passes.together);
    for (const char* name :
         {"attention_varlen_gradients_bf16_300x12", "attention_varlen_gradients_bf16_300x12x64_tile128x64s2",
          "attention_varlen_gradients_bf16_300x12x64_tile100x64q128x64s2",
          "attention_varlen_gradients_bf16_300x12x64_tile128x60q128x64s2"})
        EXPECT_FALSE(parse_varlen_gradients(name)) << name;
    for (const char* name :
         {"attention_varlen_gradients_bf16_301x4x64", "attention_varlen_gradients_bf16_300x4x128_group2",
          "attention_varlen_gradients_bf16_300x2x256",
          "attention_varlen_gradients_bf16_90x2x48_keys41_width16_tile64x48q128x48s2",
          "attention_varlen_tables_8x300_causal_of_keys_tile64"})
        EXPECT_NO_THROW(build(find_kernel(name)->make(tw::target("sm_90a")))) << name;
    const VarlenShape shape{.rows = 8, .keys = 8, .heads = 1, .depth = 8, .width = 16};
    EXPECT_EQ(varlen_gradients_flops(shape, {0, 3, 8}, {0, 3, 8}, true), (6 + 15) * 2 * (3 * 8 + 2 * 16));
}

/// Of the forward pass's declaration, and of what is made of its result, by gradients(); and by a schedule that nobody
/// wrote. Rows of the first sequence, and some of the third, see no keys in tiles where others do.
TEST_P(VarlenGradientKernels, AreThoseOfItsDeclaration) {
    const Offsets offsets{0, 5, 5, 9, 23}, of_keys{0, 0, 3, 5, 23};
    const VarlenShape shape{.rows = 23, .keys = 23, .heads = 2, .depth = 8, .width = 16, .group = 2, .type = f16};
    const VarlenTiles forward{.rows = 16, .keys = 16};
    const GradientTiles tiles{.key_rows = 8, .key_step = 16, .query_rows = 16, .query_step = 16};
    const VarlenAttention a = declare_varlen_attention(shape, forward);
    const Tensor o = with_varlen_gradients(a, shape, forward, tiles), g = input("g", f16, {23, 2, 16});
    const Tensor twice =
        compute("twice", {23, 2, 16}, [&](Expr i, Expr h, Expr e) { return cast(f32, o(i, h, e)) * 2.0; });
    const Tensor g_of_twice =
        compute("g_of_twice", {23, 2, 16}, [&](Expr i, Expr h, Expr e) { return cast(f32, g(i, h, e)) * 0.5; });
    const std::vector<Tensor> made = gradients(twice, g_of_twice, {a.q, a.k, a.v});
    Bindings launch = random_bindings(made, 9);
    const VarlenTables of_queries = varlen_tables(offsets, of_keys, true, forward.rows),
                       by_keys = varlen_tables(offsets, of_keys, true, tiles.key_rows, TilesOf::Keys);
    set_tables(launch, of_queries);
    set_tables(launch, by_keys, "_of_keys");
    const PackedResults expected = PackedFormula(shape, {}, launch).of(offsets, of_keys, true);
    const Schedule s = choose_schedule(made, device_target());
    Executable executable(build(s), device_);
    const std::vector<HostArray> got = run_on(executable, launch);
    const std::array wanted{&expected.dq, &expected.dk, &expected.dv};
    for (size_t k = 0; k < wanted.size(); ++k) {
        auto differs =
            difference(made[k].name(), got[k], *wanted[k], near(0, 4 * unit_roundoff(f16) * largest(*wanted[k])));
        EXPECT_FALSE(differs) << *differs;
    }
}

/// Tables that nobody gave a tile serve the kernels that nobody gave one, of both passes.
TEST(VarlenGradients, HaveTilesThatFitTheirTables) {
    for (const char* arch : {"sm_80", "sm_90a"})
        for (int64_t rows : {8, 70, 128, 4096, 100000})
            for (int64_t heads : {1, 4, 64})
                for (int64_t depth : {8, 128, 256}) {
                    const VarlenShape shape{.rows = rows, .keys = rows, .heads = heads, .depth = depth, .width = depth};
                    const Target target = tw::target(arch);
                    const VarlenTiles forward = varlen_tiles(shape);
                    const GradientTiles tiles = varlen_gradient_tiles(shape, target);
                    EXPECT_EQ(parse_varlen_tables("attention_varlen_tables_3x70")->of_tile, forward.rows);
                    EXPECT_EQ(parse_varlen_tables("attention_varlen_tables_3x70_of_keys")->of_tile, tiles.key_rows);
                    const VarlenAttention a = declare_varlen_attention(shape, forward);
                    EXPECT_NO_THROW(with_varlen_gradients(a, shape, forward, tiles));
                }
}

/// The tiles that are chosen, of shapes of a tile and less.
TEST_P(VarlenGradientKernels, OfTilesThatAreChosen) {
    for (unsigned round = 0; round < 4; ++round) {
        const Offsets offsets = random_offsets(between(1, 3), 90);
        if (offsets.back() == 0) continue;
        const VarlenShape shape = random_shape(offsets, offsets, 1 + round % 2);
        const GradientTiles tiles = varlen_gradient_tiles(shape, device_target());
        const VarlenGradients a = declare_varlen_gradients(shape, tiles);
        Bindings launch = random_bindings({a.dq, a.dk, a.dv}, round);
        const VarlenTables rows = varlen_tables(offsets, offsets, true, varlen_tiles(shape).rows),
                           keys = varlen_tables(offsets, offsets, true, tiles.key_rows, TilesOf::Keys);
        set_tables(launch, rows);
        set_tables(launch, keys, "_of_keys");
        const PackedResults expected = PackedFormula(shape, {}, launch).of(offsets, offsets, true);
        set_saved(launch, expected);
        const Schedule s = varlen_gradients_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Executable executable(build(s), device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        const std::array wanted{&expected.dq, &expected.dk, &expected.dv};
        for (size_t k = 0; k < wanted.size(); ++k) {
            const double error = 4 * unit_roundoff(shape.type) * largest(*wanted[k]);
            auto differs = difference(s.outputs()[k].name(), got[k], *wanted[k], near(0, error));
            EXPECT_FALSE(differs) << *differs;
        }
    }
}

TEST(VarlenGradientErrors, SayWhatToGive) {
    const VarlenShape shape{.rows = 8, .keys = 8, .heads = 3, .depth = 8, .width = 8, .group = 2};
    EXPECT_ERROR(declare_varlen_gradients(shape, {}), "varlen attention: 3 heads are no multiple of a group of 2");
    EXPECT_ERROR(declare_varlen_gradients({.rows = 8, .keys = 8, .heads = 2, .depth = 8, .width = 8},
                                          {.passes = {.kept = true}}),
                 "varlen attention: adjoints of scores cannot be kept");
    const VarlenShape small{.rows = 8, .keys = 8, .heads = 1, .depth = 8, .width = 8};
    EXPECT_ERROR(
        with_varlen_gradients(declare_varlen_attention(small, {.rows = 64}), small, {.rows = 64}, {.query_rows = 128}),
        "its tables are of 64 rows a tile, those of gradients of 128; give both the same");
    const VarlenAttention attention = declare_varlen_attention(small, {});
    EXPECT_ERROR(gradients(attention.o, input("g", bf16, {8, 1, 8}), {attention.q}),
                 "data decide how long the reduction of 'o_sum' over 'j' is; with_gradient");
    const Tensor bias = input("bias", f32, {8, 8});
    const ScoreRule biased = [&](const Expr& score, const ScorePlace& at) { return score + bias(at.row, at.key); };
    const VarlenAttention ruled = declare_varlen_attention(small, {}, {.score = biased});
    EXPECT_ERROR(gradients(with_varlen_gradients(ruled, small, {}, {}), input("g", bf16, {8, 1, 8}), {bias}),
                 "gradients: 'o' is made of 'bias', of which its own gradient");
}

/// What is given instead of inputs: its type, its dimensions, as many rows as there are tiles.
TEST(VarlenGradientErrors, OfWhatIsGiven) {
    const VarlenShape shape{.rows = 200, .keys = 300, .heads = 1, .depth = 8, .width = 8};
    const GradientTiles tiles{.key_rows = 64, .query_rows = 128};
    auto declare = [&](const VarlenSaved& saved) { declare_varlen_gradients(shape, tiles, saved); };
    auto table = [](Type type, const Shape& extents) { return input("mine", type, extents); };
    EXPECT_ERROR(
        declare({.tiles = table(i64, {2, 2})}),
        "attention: the table 'mine' is i64 [2, 2], where shape and tiles say i32 [2, 2] for 'tiles'; give what "
        "varlen_tables, or declare_varlen_tables, of tiles of 128 rows makes of them");
    EXPECT_ERROR(declare({.tiles = table(i64, {2, 2})}), "varlen_gradients_test.cpp:");
    EXPECT_ERROR(declare({.tiles = table(i32, {4, 2})}), "'mine' is i32 [4, 2], where shape and tiles say i32 [2, 2]");
    EXPECT_ERROR(declare({.seen = table(i32, {200})}), "'mine' is i32 [200], where shape and tiles say i32 [200, 2]");
    EXPECT_ERROR(
        declare({.tiles_of_keys = table(i32, {3, 2})}),
        "say i32 [5, 2] for 'tiles_of_keys'; give what varlen_tables, or declare_varlen_tables, of tiles of 64 "
        "keys makes");
    EXPECT_ERROR(declare({.seen_of_keys = table(i32, {200, 2})}), "say i32 [300, 2] for 'seen_of_keys'");
    EXPECT_ERROR(declare({.places = table(i32, {200, 2})}), "say i32 [200, 4] for 'places'");
    EXPECT_ERROR(declare({.places_of_keys = table(u32, {300, 4})}), "say i32 [300, 4] for 'places_of_keys'");
    EXPECT_ERROR(declare({.q = table(f32, {200, 1, 8})}),
                 "attention: 'mine' is f32 [200, 1, 8], where the shape says bf16 [200, 1, 8] for 'q'");
    EXPECT_ERROR(declare({.lse = table(f32, {200, 1})}), "where the shape says f32 [1, 200] for 'lse'");
}

}  // namespace
}  // namespace tw::schedules

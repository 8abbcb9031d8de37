// Attention of packed sequences: what tables say, and results of sequences of any lengths.
#include "schedules/attention_varlen.h"

#include <array>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

class VarlenKernels : public RandomCases {
protected:
    VarlenKernels() : RandomCases(151) {}

    Offsets random_offsets(int sequences, int longest) {
        Offsets offsets{0};
        for (int b = 0; b < sequences; ++b)
            offsets.push_back(offsets.back() + (between(0, 2) == 0 ? between(0, 1) : between(0, longest)));
        return offsets;
    }
};
TW_ON_EACH_DEVICE(VarlenKernels);

/// o and lse of each sequence by itself, in float64.
void expect_sequences(const std::vector<HostArray>& got, const Bindings& launch, const VarlenShape& shape,
                      const Offsets& of_rows, const Offsets& of_keys, bool causal) {
    auto of = [&](const char* name, int64_t i, int64_t h, int64_t x) {
        return launch.inputs.at(name).at({i, h, x}).real;
    };
    const double scale = 1 / std::sqrt(static_cast<double>(shape.depth));
    for (size_t b = 0; b + 1 < of_rows.size(); ++b)
        for (int64_t i = of_rows[b]; i < of_rows[b + 1]; ++i)
            for (int64_t h = 0; h < shape.heads; ++h) {
                const int64_t end =
                    causal ? std::min(of_keys[b + 1], of_keys[b + 1] - (of_rows[b + 1] - 1 - i)) : of_keys[b + 1];
                double total = 0;
                std::vector<double> values(static_cast<size_t>(shape.width));
                for (int64_t j = of_keys[b]; j < end; ++j) {
                    double score = 0;
                    for (int64_t d = 0; d < shape.depth; ++d)
                        score += of("q", i, h, d) * of("k", j, h / shape.group, d);
                    const double weight = std::exp(score * scale);
                    total += weight;
                    for (int64_t e = 0; e < shape.width; ++e)
                        values[static_cast<size_t>(e)] += weight * of("v", j, h / shape.group, e);
                }
                const double lse = got[1].at({h, i}).real;
                if (total == 0)
                    EXPECT_EQ(lse, -std::numeric_limits<double>::infinity()) << i;
                else
                    EXPECT_NEAR(lse, std::log2(total), 2e-3) << i;
                for (int64_t e = 0; e < shape.width; ++e) {
                    const double expected = total == 0 ? 0 : values[static_cast<size_t>(e)] / total;
                    ASSERT_NEAR(got[0].at({i, h, e}).real, expected, 2e-2) << "sequence " << b << ", row " << i;
                }
            }
}

TEST_P(VarlenKernels, GiveEachSequenceItsOwn) {
    for (unsigned round = 0; round < 6; ++round) {
        const bool causal = chance(), same = chance();
        const int sequences = between(1, 6);
        const Offsets of_rows = random_offsets(sequences, 150),
                      of_keys = same ? of_rows : random_offsets(sequences, 200);
        VarlenShape shape{.rows = std::max<int64_t>(of_rows.back(), 1),
                          .keys = std::max<int64_t>(of_keys.back(), 1),
                          .heads = between(1, 2),
                          .depth = 8 * between(1, 9),
                          .width = 8 * between(1, 9),
                          .group = between(1, 2)};
        if (of_rows.back() == 0) continue;
        shape.heads *= shape.group;
        if (chance()) shape.type = f16;
        const VarlenTiles tiles{.rows = 64 * between(1, 2),
                                .keys = 16 * between(2, 5),
                                .stages = between(2, 3),
                                .heads = shape.heads % 2 == 0 && chance() ? 2 : 1};
        const VarlenAttention a = declare_varlen_attention(shape, tiles);
        const Schedule s = varlen_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings launch = random_bindings({a.o, a.lse}, round);
        const VarlenTables tables = varlen_tables(of_rows, of_keys, causal, tiles.rows);
        launch.inputs.at("tiles") = tables.tiles;
        launch.inputs.at("seen") = tables.seen;
        Executable executable(build(s), device_);
        expect_sequences(run_on(executable, launch), launch, shape, of_rows, of_keys, causal);
        expect_compiles(executable.program());
    }
}

/// Tables made of offsets by a kernel are those made on the host, with rows and keys behind the last sequence.
TEST_P(VarlenKernels, MakeTheTablesOfTheHost) {
    for (unsigned round = 0; round < 6; ++round) {
        const bool causal = chance();
        const int sequences = between(1, 7);
        const Offsets of_rows = random_offsets(sequences, 90), of_keys = random_offsets(sequences, 120);
        if (of_rows.back() == 0) continue;
        const VarlenTableTensors tensors =
            declare_varlen_tables(sequences, of_rows.back(), std::max<int64_t>(of_keys.back(), 1), causal, 64);
        Bindings launch = random_bindings({tensors.tiles, tensors.seen}, round);
        for (int64_t b = 0; b <= sequences; ++b) {
            launch.inputs.at("of_rows").set({b}, make_value(i32, of_rows[static_cast<size_t>(b)]));
            launch.inputs.at("of_keys").set({b}, make_value(i32, of_keys[static_cast<size_t>(b)]));
        }
        const Schedule s = varlen_tables_schedule(tensors, device_target());
        expect_declared(s, launch);
        const VarlenTables host = varlen_tables(of_rows, of_keys, causal, 64);
        const std::vector<HostArray> made = interpret_plain({tensors.tiles, tensors.seen}, launch);
        EXPECT_EQ(difference("tiles", made[0], host.tiles, bitwise), std::nullopt);
        EXPECT_EQ(difference("seen", made[1], host.seen, bitwise), std::nullopt);
    }
}

TEST(Varlen, TablesSayWhatTilesSee) {
    // Two sequences of 3 and 5 rows, tiles of 4: the second tile sees the second sequence's keys alone.
    const VarlenTables tables = varlen_tables({0, 3, 8}, {0, 3, 8}, true, 4);
    auto text = [](const HostArray& array) {
        std::string all;
        for (int64_t i = 0; i < array.shape[0]; ++i)
            all += fmt::format("{}..{} ", array.at({i, 0}).integer, array.at({i, 1}).integer);
        return all;
    };
    EXPECT_EQ(text(tables.tiles), "0..4 3..5 ");  // the first, and how many
    EXPECT_EQ(text(tables.seen), "0..1 0..2 0..3 3..4 0..2 0..3 0..4 0..5 ");
    const VarlenShape shape{.rows = 8, .keys = 8, .heads = 1, .depth = 8, .width = 8};
    EXPECT_EQ(varlen_flops(shape, {0, 3, 8}, {0, 3, 8}, false), (9 + 25) * 2 * 16);
    EXPECT_EQ(varlen_flops(shape, {0, 3, 8}, {0, 3, 8}, true), (6 + 15) * 2 * 16);
}

TEST(Varlen, IsAskedForByName) {
    const auto named = parse_varlen("attention_varlen_f16_300x12x40_keys500_width24_group3_tile64x32s3h4");
    ASSERT_TRUE(named);
    const VarlenShape& shape = named->shape;
    EXPECT_EQ((std::array{shape.rows, shape.keys, shape.heads, shape.depth, shape.width, shape.group}),
              (std::array<int64_t, 6>{300, 500, 12, 40, 24, 3}));
    EXPECT_TRUE(shape.type == f16 && named->tiles->rows == 64 && named->tiles->keys == 32 && named->tiles->stages == 3);
    EXPECT_EQ(named->tiles->heads, 4);
    for (const char* name :
         {"attention_varlen_bf16_300x12", "attention_varlen_bf16_300x12x40_group5", "attention_varlen_bf16_300x12x44",
          "attention_varlen_bf16_300x12x264", "attention_varlen_bf16_300x12x64_tile100x64s2",
          "attention_varlen_bf16_300x12x64_tile128x64s2h5"})
        EXPECT_FALSE(parse_varlen(name)) << name;
    const auto tables = parse_varlen_tables("attention_varlen_tables_8x300_causal_tile64");
    ASSERT_TRUE(tables);
    EXPECT_TRUE(tables->sequences == 8 && tables->rows == 300 && tables->keys == 300 && tables->seen.behind == 0);
    EXPECT_EQ(tables->of_tile, 64);
    EXPECT_NO_THROW(build(find_kernel("attention_varlen_bf16_300x4x256_group2")->make(tw::target("sm_90a"))));
    EXPECT_NO_THROW(build(find_kernel("attention_varlen_tables_8x300")->make(tw::target("sm_90a"))));
}

TEST(VarlenErrors, SayWhatToGive) {
    EXPECT_ERROR(varlen_tables({1, 3}, {0, 3}, true, 64),
                 "varlen: offsets begin with 0 and grow, up to the number of "
                 "all rows");
    EXPECT_ERROR(varlen_tables({0, 3}, {0, 3, 2}, true, 64), "up to the number of all keys");
    EXPECT_ERROR(varlen_tables({0, 3}, {0, 3, 4}, true, 64), "offsets of 1 sequences of rows, of 2 of keys");
    EXPECT_ERROR(declare_varlen_attention({.rows = 8, .keys = 8, .heads = 3, .depth = 8, .width = 8, .group = 2}, {}),
                 "varlen attention: 3 heads are no multiple of a group of 2");
}

}  // namespace
}  // namespace tw::schedules

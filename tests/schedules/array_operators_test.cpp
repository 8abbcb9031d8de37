// Sums of columns and of everything, and transposes, of any shape.
#include "schedules/array_operators.h"

#include <random>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "schedules/choose.h"
#include "schedules/long_reductions.h"
#include "tests/ops/random_cases.h"

namespace tw::schedules {
namespace {

class ArraysOfAnyShape : public RandomCases {
protected:
    ArraysOfAnyShape() : RandomCases(57) {}

    Type some_type() { return std::array{f32, bf16, f16}[static_cast<size_t>(between(0, 2))]; }
    int64_t some_extent(int most) { return chance() ? 8 * between(1, most / 8) : between(1, most); }

    void check(const Schedule& s) {
        SCOPED_TRACE(s.trace_as_cpp());
        const std::vector<Tensor> outputs = s.outputs();
        const Bindings launch = random_bindings(outputs, static_cast<uint64_t>(between(1, 1000)));
        const Program program = build(s);
        Executable executable(program, device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        for (size_t k = 0; k < outputs.size(); ++k) {
            const CheckResult result = check_output(outputs[k], launch, got[k], {.approximate = program.approximate()});
            EXPECT_TRUE(result.ok) << result.text << "\n" << program.cuda();
        }
    }
};
TW_ON_EACH_DEVICE(ArraysOfAnyShape);

TEST_P(ArraysOfAnyShape, SumsOfColumns) {
    for (int round = 0; round < 12; ++round) {
        const Type type = some_type();
        const int64_t rows = some_extent(round % 3 == 0 ? 3000 : 200), columns = some_extent(400);
        const Tensor x = input("x", type, {rows, columns});
        const Declared y = column_sum(x);
        Schedule s(y.outputs, device_target());
        ColumnThreads shape = column_threads(rows, columns, 16 / bytes_of(type));
        if (chance()) shape = {.lanes = 8, .rows = 32, .neighbours = shape.neighbours, .chunk = rows};
        if (chance()) shape.steps = between(2, 8);
        schedule_column_reduction(s, y.outputs[0], rows, shape);
        check(s);
    }
}

/// Running means: by rule, and with any threads, of which each combines groups of neighbouring rows.
TEST_P(ArraysOfAnyShape, MeansOfColumns) {
    for (int round = 0; round < 4; ++round) {
        const int64_t rows = some_extent(round == 0 ? 2500 : 400), columns = std::max<int64_t>(some_extent(80), 8);
        const Tensor x = input("x", some_type(), {rows, columns});
        const Axis i = reduce_axis("i", rows);
        const std::vector<Tensor> y = compute_tuple("moments", {columns}, [&](const std::vector<Expr>& at) {
            const std::vector<Expr> parts = welford(cast(f32, x(i, at[0])), {i});
            return std::vector<Expr>{parts[0], parts[1] / max(parts[2], 1.0)};
        });
        if (round < 2) {
            check(choose_schedule(y, device_target()));
            continue;
        }
        Schedule s(y, device_target());
        const int64_t sharers = between(1, 8);
        const ColumnThreads shape{.lanes = chance() ? columns : 8,
                                  .rows = sharers,
                                  .neighbours = 1,
                                  .chunk = sharers * between(4, 40),
                                  .steps = between(1, 8)};
        schedule_column_reduction(s, y[0], rows, shape);
        check(s);
    }
}

/// Whole narrow rows are read by one thread an element, and a mean's divisions are of known counts.
TEST(ColumnThreads, StandInWholeNarrowRows) {
    const Tensor x = input("x", f32, {100000, 77});
    const Axis i = reduce_axis("i", 100000);
    const std::string sums = build(choose_schedule(column_sum(x).outputs, target("sm_90a"))).cuda();
    EXPECT_THAT(sums, testing::HasSubstr("const int column = thread % 77;"));
    const std::vector<Tensor> y =
        compute_tuple("moments", {77}, [&](const std::vector<Expr>& at) { return welford(x(i, at[0]), {i}); });
    const std::string means = build(choose_schedule(y, target("sm_90a"))).cuda();
    EXPECT_THAT(means, testing::HasSubstr("const int column = thread % 77;"));
    EXPECT_THAT(means, testing::HasSubstr("1.0f / (moments_partial_partial_welford_2 + 1.0f)"));
}

/// Tiles of columns are as wide as a warp's vectors, but where much of the last one would lie behind the columns.
TEST(ColumnThreads, FitTheColumns) {
    EXPECT_EQ(column_threads(13804, 320, 8).lanes, 8);
    EXPECT_EQ(column_threads(13804, 384, 8).lanes, 16);
    EXPECT_EQ(column_threads(13804, 512, 8).lanes, 32);
    EXPECT_EQ(column_threads(13804, 10200, 8).lanes, 32);
}

TEST_P(ArraysOfAnyShape, SumsOfEverything) {
    for (int round = 0; round < 12; ++round) {
        const Type type = some_type();
        const int64_t count = some_extent(round % 3 == 0 ? 60000 : 3000);
        const Declared y = dot(count, type);
        Schedule s(y.outputs, device_target());
        schedule_full_reduction(s, y.outputs[0], count, 16 / bytes_of(type),
                                chance() ? Combine::Atomic : Combine::Workspace);
        check(s);
    }
}

TEST_P(ArraysOfAnyShape, Transposes) {
    for (int round = 0; round < 12; ++round) {
        const Tensor x = input("x", some_type(), {some_extent(200), some_extent(200)});
        check(choose_schedule(transpose(x).outputs, device_target()));
    }
}

/// A warp stores whole sectors, whatever lies together in a row.
TEST(Transposes, OfOddRowsStoreNeighbours) {
    for (auto [rows, stored] : {std::pair{1002, "row * 1002 + t * 2"}, {1001, "row * 1001 + t"}}) {
        const Tensor x = input("x", bf16, {rows, 640});
        const Schedule s = choose_schedule(transpose(x).outputs, target("sm_90a"));
        EXPECT_THAT(build(s).cuda(), testing::HasSubstr(stored));
    }
}

/// Few rows of many columns are summed in one kernel; rows that are no whole vectors by neighbouring threads.
TEST(SumsOfColumns, OfFewRowsAreOneKernel) {
    for (auto [rows, columns, kernels] : {std::array{400, 40384, 1}, {400, 4096, 2}, {40000, 4096, 2}}) {
        const Declared y = column_sum(input("x", bf16, {rows, columns}));
        Schedule s(y.outputs, target("sm_90a"));
        schedule_column_reduction(s, y.outputs[0], rows, column_threads(rows, columns, 8));
        EXPECT_EQ(build(s).kernels().size(), static_cast<size_t>(kernels)) << rows << "x" << columns;
    }
    const Declared y = column_sum(input("x", bf16, {400, 303}));
    Schedule s(y.outputs, target("sm_90a"));
    schedule_column_reduction(s, y.outputs[0], 400, column_threads(400, 303, 8));
    EXPECT_THAT(build(s).cuda(), testing::HasSubstr("column + piece * 8"));
}

/// Blocks of few threads ask for no more of them than a multiprocessor has.
TEST(SumsOfColumns, FitEachTarget) {
    for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_120a"})
        for (int64_t rows : {1, 4, 32}) {
            const Declared y = column_sum(input("x", f32, {100, 256}));
            Schedule s(y.outputs, target(arch));
            const ColumnThreads shape{.lanes = 8, .rows = rows, .neighbours = 4, .chunk = 100, .steps = 2};
            schedule_column_reduction(s, y.outputs[0], 100, shape);
            EXPECT_NO_THROW(build(s)) << arch << " " << rows;
        }
}

/// Rows that are no whole vectors: few of them have rounds of several loads, more have chunks for more blocks.
TEST(SumsOfColumns, OfPiecesHaveLoadsInFlight) {
    std::mt19937 random(std::random_device{}());
    for (int round = 0; round < 20; ++round) {
        const int64_t rows = std::uniform_int_distribution<int64_t>(64, 1000)(random),
                      columns = 2 * std::uniform_int_distribution<int64_t>(1000, 20000)(random) + 1;
        const Declared y = column_sum(input("x", bf16, {rows, columns}));
        const auto found = column_reduction_of(y.outputs[0]);
        ASSERT_TRUE(found) << rows << "x" << columns;
        const ColumnThreads& threads = found->threads;
        EXPECT_TRUE(threads.steps > 1 || threads.chunk < rows) << rows << "x" << columns;
        Schedule s(y.outputs, target("sm_90a"));
        schedule_column_reduction(s, y.outputs[0], rows, threads);
        EXPECT_EQ(build(s).kernels().size(), threads.chunk < rows ? 2u : 1u) << rows << "x" << columns;
    }
}

/// However many rows there are, what a thread loads at once waits for no mask, but for the last rounds.
TEST(SumsOfColumns, OfAnyNumberOfRowsHaveWholeRounds) {
    for (int64_t rows : {1025, 1500, 1999, 2048}) {
        const Declared y = column_sum(input("x", f32, {rows, 20480}));
        Schedule s(y.outputs, target("sm_90a"));
        schedule_column_reduction(s, y.outputs[0], rows, column_threads(rows, 20480, 4));
        const std::string text = build(s).cuda();
        const size_t loop = text.find("round < " + std::to_string(rows / 256)), load = text.find("tw::load<4>", loop);
        ASSERT_NE(load, std::string::npos) << text;
        EXPECT_THAT(text.substr(loop, load - loop), testing::Not(testing::HasSubstr("if ("))) << text;
    }
}

}  // namespace
}  // namespace tw::schedules

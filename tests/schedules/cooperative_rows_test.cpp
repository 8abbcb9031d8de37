// Rows that threads share: of any length, several of few elements in a warp, running means in parts.
#include "schedules/cooperative_rows.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/executable.h"
#include "schedules/catalog.h"
#include "schedules/row_operators.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

class CooperativeRows : public RandomCases {
protected:
    CooperativeRows() : RandomCases(31) {}

    void check(const std::string& name, int64_t rows, int64_t columns, Type type) {
        const Tensor x = input("x", type, {rows, columns});
        const RowOperator declare = name == "standardise"      ? standardise
                                    : name == "argmax_of_kept" ? row_argmax_of_kept
                                                               : row_operators().at(name);
        const std::vector<Tensor> y = declare(kept_rows(x), reduce_axis("k", columns), type);
        const Bindings launch = random_bindings(y, static_cast<uint64_t>(columns));
        RowThreads shape = row_threads(columns, 16 / bytes_of(type));
        if (chance()) shape.neighbours = std::gcd(shape.neighbours, columns);
        if (chance()) shape.rows = between(1, 5);
        if (chance()) shape.keep = false;
        if (shape.keep && chance()) shape.in_shared = between(1, 2);
        Schedule s(y, device_target());
        schedule_cooperative_rows(s, y[0], shape);
        SCOPED_TRACE(fmt::format("{}_{}x{}_{}\n{}", name, rows, columns, name_of(type), s.trace_as_cpp()));
        const Program program = build(s);
        Executable executable(program, device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        for (size_t k = 0; k < y.size(); ++k) {
            const CheckResult result = check_output(y[k], launch, got[k], {.approximate = program.approximate()});
            EXPECT_TRUE(result.ok) << result.text << "\n" << program.cuda();
        }
    }
};
TW_ON_EACH_DEVICE(CooperativeRows);

TEST_P(CooperativeRows, OfAnyLength) {
    const std::string names[] = {"row_sum",       "softmax",     "layernorm",  "rmsnorm",          "argmax",
                                 "moments",       "standardise", "similarity", "softmax_gradient", "layernorm_gradient",
                                 "argmax_of_kept"};
    const Type types[] = {f32, bf16, f16};
    for (int round = 0; round < 60; ++round) {
        const int64_t most = std::array{20, 300, 3000}[static_cast<size_t>(between(0, 2))];
        check(names[between(0, 10)], between(1, 40), between(1, static_cast<int>(most)), types[between(0, 2)]);
    }
}

TEST_P(CooperativeRows, OfNoElements) {
    for (const char* name : {"moments", "argmax_of_kept", "softmax"}) check(name, 5, 0, f32);
}

TEST(CooperativeRowsThreads, AreNoMoreThanShortRowsHaveVectors) {
    for (auto [columns, neighbours, threads] :
         {std::array{128, 8, 8}, std::array{1000, 8, 32}, std::array{1, 8, 4}, std::array{257, 8, 16},
          std::array{256, 8, 8}, std::array{64, 4, 8}, std::array{20, 4, 4}, std::array{4096, 8, 128}}) {
        const RowThreads shape = row_threads(columns, neighbours);
        EXPECT_EQ(shape.threads, threads) << columns;
        EXPECT_EQ(shape.threads * shape.rows % 32, 0) << columns;
    }
}

/// Each of few rows has threads enough for its multiprocessor.
TEST(CooperativeRowsThreads, OfFewRowsAreMany) {
    auto threads_of = [](const char* name) {
        return build(find_kernel(name)->make(target("sm_90a"))).kernels().at(0).threads;
    };
    EXPECT_EQ(threads_of("moments_128x15680_f32"), 512);
    EXPECT_EQ(threads_of("moments_4096x15680_f32"), 128);
}

/// A division for several vectors, not for each element.
TEST(CooperativeRowsParts, OfRunningMeansHaveKnownCounts) {
    const Tensor x = input("x", f16, {64, 4096});
    const std::vector<Tensor> y = row_moments(kept_rows(x), reduce_axis("k", 4096), f16);
    Schedule s(y, target("sm_90a"));
    schedule_cooperative_rows(s, y[0], row_threads(4096, 8));
    const std::string text = build(s).cuda();
    EXPECT_THAT(text, testing::HasSubstr("tw::load<8>(x_values"));
    EXPECT_THAT(text, testing::HasSubstr("moments_partial"));
    // Both results share the quotient.
    const std::string quotient = "1.0f / (moments_partial_welford_2 + 1.0f)";
    EXPECT_NE(text.find(quotient), std::string::npos);
    EXPECT_EQ(text.find(quotient), text.rfind(quotient));
}

/// Of equal elements, of rows that have no number and of those that have nothing but the least.
TEST(CooperativeRowsParts, AnArgmaxInTwoPassesIsTheSame) {
    const Tensor x = input("x", f32, {9, 40});
    HostArray values = host_array(f32, {9, 40});
    fill_integers(values, -3, 3, 5);
    const double infinite = std::numeric_limits<double>::infinity();
    for (int64_t column = 0; column < 40; ++column) {
        values.set({1, column}, make_value(f32, std::nan("")));
        values.set({2, column}, make_value(f32, -infinite));
        if (column % 3 == 0) values.set({3, column}, make_value(f32, std::nan("")));
    }
    const Bindings launch{.inputs = {{"x", values}}, .sizes = {}, .scalars = {}};
    const Axis k = reduce_axis("k", 40), q = reduce_axis("q", 40);
    const std::vector<HostArray> wanted = interpret_plain(row_argmax(x, k, f32), launch),
                                 got = interpret_plain(row_argmax_of_kept(x, q, f32), launch);
    for (size_t c = 0; c < 2; ++c) {
        const auto differs = difference("largest", got[c], wanted[c], bitwise);
        EXPECT_FALSE(differs) << *differs;
    }
}

/// What is largest is found first, then where it stands: no index of 64 bits is carried along.
TEST(CooperativeRowsParts, OfAnArgmaxOfKeptRows) {
    const Tensor x = input("x", bf16, {64, 4096});
    const std::vector<Tensor> y = row_argmax_of_kept(kept_rows(x), reduce_axis("k", 4096), bf16);
    Schedule s(y, target("sm_90a"));
    schedule_cooperative_rows(s, y[0], row_threads(4096, 8));
    const Program program = build(s);
    ASSERT_EQ(program.kernels().size(), 1u);
    EXPECT_THAT(program.cuda(), testing::Not(testing::HasSubstr("shuffle_xor((long long)")));
    EXPECT_THAT(program.cuda(), testing::HasSubstr("int place"));
}

/// Rows as long as data say have no parts of known lengths.
TEST(CooperativeRowsParts, OfRowsAsLongAsDataSay) {
    const Tensor x = input("x", f32, {1000}), offsets = input("offsets", i64, {9});
    const std::vector<Tensor> y = compute_tuple("moments", {8}, [&](const std::vector<Expr>& i) {
        const Axis r = reduce_axis("r", offsets(i[0] + 1) - offsets(i[0]));
        return welford(x(offsets(i[0]) + r), {r});
    });
    Schedule s(y, target("sm_90a"));
    EXPECT_NO_THROW(schedule_cooperative_rows(s, y[0], row_threads(128, 4)));
}

/// A stage is known by what it reduces by, whatever its name is: sums beside running means have no parts.
TEST(CooperativeRowsParts, AreOfTheStageThatDivides) {
    const Tensor x = input("x", f32, {64, 4096});
    const Axis k = reduce_axis("k", 4096), r = reduce_axis("r", 4096);
    const auto mean = [&](const Expr& i) { return welford(x(i, k), {k})[0]; };
    const Tensor y = compute("y", {64, 4096}, [&](Expr i, Expr j) { return x(i, j) - mean(i) * sum(abs(x(i, r)), r); });
    const Tensor y_welford = compute("y_welford", {64}, [&](Expr i) { return sum(y(i, k), k); });
    Schedule s({y_welford}, target("sm_90a"));
    schedule_cooperative_rows(s, y_welford, row_threads(4096, 4));
    int parts = 0;
    for (const Stage& stage : s.all_stages()) parts += s.name(stage).find("_partial") != std::string::npos;
    EXPECT_EQ(parts, 1) << s.to_string();
}

/// Of one dimension, which is a row's, nothing is left to be rows; a number of each row is made by threads that share
/// it.
TEST(CooperativeRowsErrors, SayThatThereAreNoRows) {
    const Tensor x = input("x", f32, {20, 8});
    const Axis a = reduce_axis("a", 8), b = reduce_axis("b", 8);
    const Tensor m = compute("m", {20}, [&](Expr i) { return reduce_max(x(i, a), a); });
    const Tensor l = compute("l", {20}, [&](Expr i) { return sum(exp(x(i, b) - m(i)), b); });
    const Tensor y = compute("y", {20}, [&](Expr i) { return m(i) + log(l(i)); });
    Schedule s({y}, target("sm_90a"));
    schedule_cooperative_rows(s, y, row_threads(8, 4));
    const Bindings launch = random_bindings({y}, 3);
    Executable executable(build(s), open_device("emulated:sm_90a"));
    const CheckResult result = check_output(y, launch, run_on(executable, launch)[0], {});
    EXPECT_TRUE(result.ok) << result.text;
    const Tensor z = compute("z", {20}, [&](Expr i) { return exp(x(i, 0)); });
    Schedule no_rows({z}, target("sm_90a"));
    EXPECT_ERROR(schedule_cooperative_rows(no_rows, z, row_threads(8, 4)),
                 "cooperative rows: 'z' reduces nothing and has 1 dimensions, of which the last is taken for a row's "
                 "elements: no rows are left; name what has elements for each row, or a reduction");
    Schedule of_sums({l}, target("sm_90a"));
    EXPECT_NO_THROW(schedule_cooperative_rows(of_sums, l, row_threads(8, 4)));
}

}  // namespace
}  // namespace tw::schedules

// Reductions of rows that need each other's results, in one pass: any rows and types, whatever is computed of them.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "ops/check.h"
#include "ops/executable.h"
#include "schedules/cooperative_rows.h"
#include "schedules/row_operators.h"
#include "schedules/streamed_rows.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

/// The widest vector that rows of so many elements begin at multiples of.
int64_t neighbours_of(int64_t columns, Type type) {
    int64_t neighbours = 16 / bytes_of(type);
    while (columns % neighbours != 0) neighbours /= 2;
    return neighbours;
}

/// Sum of exp(x) * v over sum of exp(x): the mean of v by the softmax of x; three reductions, one of two operands.
std::vector<Tensor> weighted_mean(const Tensor& x, const Axis& k, Type result) {
    Tensor v = input("v", result, {x.shape()[0], x.shape()[1]});
    const Shape rows{x.shape()[0]};
    auto weight = [&](const Tensor& top, const Expr& i) { return exp(cast(f32, x(i, k)) - top(i)); };
    Tensor top = compute("top", rows, [&](Expr i) { return reduce_max(cast(f32, x(i, k)), k); });
    Tensor total = compute("total", rows, [&](Expr i) { return sum(weight(top, i), k); });
    return {compute("mean", rows, [&](Expr i) { return sum(weight(top, i) * cast(f32, v(i, k)), k) / total(i); })};
}

/// The logarithm of a sum of exponentials and how far the largest is above the smallest: two that do not read others.
std::vector<Tensor> log_sum_and_range(const Tensor& x, const Axis& k, Type result) {
    const Shape rows{x.shape()[0]};
    auto element = [&](const Expr& i) { return cast(f32, x(i, k)); };
    Tensor top = compute("top", rows, [&](Expr i) { return reduce_max(element(i), k); });
    Tensor bottom = compute("bottom", rows, [&](Expr i) { return reduce_min(element(i), k); });
    Tensor total = compute("total", rows, [&](Expr i) { return sum(exp(element(i) - top(i)), k); });
    return {compute("y", rows, [&](Expr i) { return cast(result, top(i) + log(total(i)) + (top(i) - bottom(i))); })};
}

/// x / largest magnitude, a factor as the ratio, with the sum of squares as another row result: over columns.
std::vector<Tensor> normalised(const Tensor& x, const Axis& k, Type result) {
    const Shape rows{x.shape()[0]};
    auto element = [&](const Expr& i, const Expr& j) { return cast(f32, x(i, j)); };
    Tensor largest = compute("largest", rows, [&](Expr i) { return reduce_max(abs(element(i, k)) + 1.0, k); });
    Tensor squares = compute("squares", rows,
                             [&](Expr i) { return sum(element(i, k) / largest(i) * (element(i, k) / largest(i)), k); });
    Tensor scale = compute("scale", rows, [&](Expr i) { return rsqrt(squares(i) + 1.0) / largest(i); });
    return {compute("y", {x.shape()[0], x.shape()[1]},
                    [&](Expr i, Expr j) { return cast(result, element(i, j) * scale(i)); })};
}

Schedule streamed(const std::vector<Tensor>& y, const RowChunks& shape, const Target& target,
                  const Tensor& aligned = {}) {
    Schedule s(y, target);
    schedule_streamed_rows(s, y[0], shape, aligned);
    return s;
}

class StreamedRows : public OnEachDevice {
protected:
    void check(const std::vector<Tensor>& y, const RowChunks& shape, const Bindings& launch,
               const Tensor& aligned = {}) {
        const Schedule s = streamed(y, shape, device_target(), aligned);
        SCOPED_TRACE(s.trace_as_cpp());
        const Program program = build(s);
        Executable executable(program, device_);
        const std::vector<HostArray> got = run_on(executable, launch);
        const CheckResult result = check_output(y[0], launch, got[0], {.approximate = program.approximate()});
        EXPECT_TRUE(result.ok) << result.text << "\n" << program.cuda();
    }

    void check(const RowOperator& declare, int64_t rows, int64_t columns, Type type) {
        SCOPED_TRACE(fmt::format("{} x {} {}", rows, columns, name_of(type)));
        Tensor x = input("x", type, {rows, columns});
        const std::vector<Tensor> y = declare(x, reduce_axis("k", columns), type);
        const Bindings launch = random_bindings(y, static_cast<uint64_t>(columns));
        const int64_t vector = 16 / bytes_of(type), own = neighbours_of(columns, type);
        check(y, row_chunks(columns, own, type), launch);
        if (own < vector) check(y, row_chunks(columns, vector, type), launch, x);
    }
};
TW_ON_EACH_DEVICE(StreamedRows);

constexpr std::pair<int64_t, int64_t> small_rows[] = {{1, 1}, {3, 2}, {9, 31}, {5, 96}, {2, 1000}, {3, 4099}};

TEST_P(StreamedRows, CrossEntropyOfAnyRows) {
    for (Type type : {f32, bf16, f16})
        for (auto [rows, columns] : small_rows) check(cross_entropy, rows, columns, type);
    check(cross_entropy, 2, 3 * 8192 + 8, bf16);  // whole steps, and a tail
    check(cross_entropy, 2, 2 * 8192, bf16);      // whole steps alone
    check(cross_entropy, 1, 50257, f16);
}

TEST_P(StreamedRows, SoftmaxOverColumns) {
    for (auto [rows, columns] : small_rows) check(softmax, rows, columns, bf16);
    check(softmax, 1, 70000, bf16);
    check(softmax, 1, 9001, f32);
}

TEST_P(StreamedRows, WhatUsersDeclare) {
    for (Type type : {f32, bf16})
        for (auto [rows, columns] : small_rows) {
            check(weighted_mean, rows, columns, type);
            check(log_sum_and_range, rows, columns, type);
            check(normalised, rows, columns, type);
        }
}

/// Row values that a gather tells, and others, in front of the elements.
TEST_P(StreamedRows, ElementsOfRows) {
    for (Type type : {f32, bf16})
        for (auto [rows, columns] : small_rows) check(cross_entropy_gradient, rows, columns, type);
    check(cross_entropy_gradient, 1, 20003, f16);
}

/// Chunks of any shape: a pair of neighbours, few threads, several rows a block.
TEST_P(StreamedRows, ChunksOfAnyShape) {
    Tensor x = input("x", bf16, {5, 402});
    const std::vector<Tensor> y = cross_entropy(x, reduce_axis("k", 402), bf16);
    for (const RowChunks& shape : {RowChunks{.threads = 32, .rows = 2, .neighbours = 2, .vectors = 3},
                                   RowChunks{.threads = 64, .rows = 1, .neighbours = 1, .vectors = 5},
                                   RowChunks{.threads = 128, .rows = 4, .neighbours = 2, .vectors = 1}})
        check(y, shape, random_bindings(y, 5));
}

/// Chunks without a finite element count nothing; a row of which nothing is left gives what the formula gives, NaN.
TEST_P(StreamedRows, RowsOfInfinities) {
    const int64_t columns = 5000, rows = 4;
    Tensor x = input("x", f32, {rows, columns});
    const std::vector<Tensor> y = cross_entropy(x, reduce_axis("k", columns), f32);
    Bindings launch = random_bindings(y, 3);
    HostArray& elements = launch.inputs.at("x");
    const Value nothing = make_value(f32, -std::numeric_limits<double>::infinity());
    HostArray& label = launch.inputs.at("label");
    auto whole = [](int64_t number) { return make_value(i64, number); };
    for (int64_t j = 0; j < columns; ++j) {
        if (j != 4321) elements.set({0, j}, nothing);  // one element
        if (j < 4096) elements.set({1, j}, nothing);   // whole chunks first
        if (j >= 17) elements.set({2, j}, nothing);    // whole chunks last
        elements.set({3, j}, nothing);                 // all
    }
    label.set({0}, whole(4321));
    label.set({1}, whole(4100));
    label.set({2}, whole(16));
    Executable executable(build(streamed(y, row_chunks(columns, neighbours_of(columns, f32), f32), device_target())),
                          device_);
    const HostArray got = run_on(executable, launch)[0], expected = interpret_plain(y, launch)[0];
    EXPECT_EQ(got.at({0}).real, 0);
    for (int64_t row : {1, 2}) EXPECT_NEAR(got.at({row}).real, expected.at({row}).real, 2e-5);
    EXPECT_TRUE(std::isnan(got.at({3}).real));
}

/// Another output that rows do not read is left alone, with what it is made of.
TEST_P(StreamedRows, BesideOtherOutputs) {
    for (const bool streams : {false, true}) {
        Tensor x = input("x", f32, {5, 100}), w = input("w", f32, {70, 9});
        const Axis k = reduce_axis("k", 100);
        const Tensor y = (streams ? cross_entropy : softmax)(x, k, f32)[0];
        const Axis i = reduce_axis("i", 70);
        const Tensor squares = compute("squares", {70, 9}, [&](Expr r, Expr c) { return w(r, c) * w(r, c); });
        const Tensor other = compute("other", {9}, [&](Expr c) { return sum(squares(i, c), i); });
        Schedule s({y, other}, device_target());
        if (streams)
            schedule_streamed_rows(s, y, row_chunks(100, 4, f32));
        else
            schedule_cooperative_rows(s, y, row_threads(100, 4));
        EXPECT_EQ(s.data_loops(other).size(), 1U);
        EXPECT_EQ(s.data_loops(squares).size(), 2U);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, random_bindings({y, other}, 4), near(1, 1e-4));
    }
}

/// The pass loads a chunk's vectors before it uses the first, and once; its tail loads them together, too.
TEST(StreamedRowsText, LoadsOfAChunkComeFirst) {
    Tensor x = input("x", bf16, {64, 20000});
    const std::vector<Tensor> y = cross_entropy(x, reduce_axis("k", 20000), bf16);
    const std::string text = build(streamed(y, row_chunks(20000, 8, bf16), target("sm_90a"))).cuda();
    EXPECT_NE(text.find("for (int step = 0; step < 2; ++step)"), text.npos) << text;
    EXPECT_NE(text.find(") tw::load<8>(x_values[chunk], &x["), text.npos) << text;
    EXPECT_EQ(text.find("float largest_partial_out["), text.npos) << text;  // a thread's own
}

TEST(StreamedRowsErrors, TermsWithoutARatio) {
    Tensor x = input("x", f32, {8, 1000});
    const std::vector<Tensor> y = layernorm(x, reduce_axis("k", 1000), f32);
    Schedule s(y, target("sm_90a"));
    EXPECT_ERROR(schedule_streamed_rows(s, y[0], row_chunks(1000, 4, f32)), "cannot run in one pass with 'mean'");
}

TEST(StreamedRowsErrors, NothingToReduce) {
    Tensor x = input("x", f32, {1000});
    Tensor y = compute("y", {1000}, [&](Expr i) { return x(i) + 1.0; });
    Schedule s({y}, target("sm_90a"));
    EXPECT_ERROR(schedule_streamed_rows(s, y, row_chunks(1000, 4, f32)), "'y' reduces nothing and has no columns");
}

}  // namespace
}  // namespace tw::schedules

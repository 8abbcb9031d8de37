// The schedule for any computation: what it computes, and which rule took each form.
#include "schedules/choose.h"

#include <array>
#include <functional>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/executable.h"
#include "ops/runner.h"
#include "schedules/choices.h"
#include "tests/schedules/integers_for.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

enum class Rule { Product, Rows, SharedReduction, OneThreadEach, Sorted, Listed };

/// Integers: sums are exact in every order, so that the emulated kernels agree with the declaration bit for bit.
void expect_chosen(const std::vector<Tensor>& outputs, Rule rule) {
    SCOPED_TRACE(to_string(*outputs[0].operation()));
    Bindings bindings = integers_for(outputs, 4);
    Schedule s = schedules::choose_schedule(outputs, target("sm_90a"));
    std::string steps = s.trace_as_cpp();
    EXPECT_EQ(steps.find("{\"block_m\", \"tile_m\"}") != std::string::npos, rule == Rule::Product) << steps;
    EXPECT_EQ(steps.find(", 32, Tail::Mask, {\"step\", \"share\"})") != std::string::npos,
              rule == Rule::SharedReduction)
        << steps;
    EXPECT_EQ(steps.find("{\"share\", \"element\"}") != std::string::npos, rule == Rule::Rows) << steps;
    EXPECT_EQ(steps.find("s.scatter(") != std::string::npos, rule == Rule::Sorted) << steps;
    EXPECT_EQ(steps.find("list_terms(s, ") != std::string::npos, rule == Rule::Listed) << steps;
    if (rule == Rule::Sorted) return;  // too large to interpret
    Executable executable(build(s), open_device("emulated"));
    std::vector<HostArray> got = run_on(executable, bindings), expected = interpret_plain(outputs, bindings);
    for (size_t k = 0; k < outputs.size(); ++k) {
        auto differs = difference(outputs[k].name(), got[k], expected[k]);
        EXPECT_FALSE(differs) << *differs;
    }
}

TEST(Choose, Products) {
    constexpr int64_t M = 21, N = 18, K = 13;
    Axis k = reduce_axis("k", K);
    for (bool ta : {false, true})
        for (bool tb : {false, true}) {
            Tensor a = ta ? input("a", f32, {K, M}) : input("a", f32, {M, K});
            Tensor b = tb ? input("b", f32, {N, K}) : input("b", f32, {K, N});
            Tensor bias = input("bias", f32, {N});
            expect_chosen({compute("c", {M, N},
                                   [&](Expr i, Expr j) {
                                       Expr left = ta ? a(k, i) : a(i, k), right = tb ? b(j, k) : b(k, j);
                                       return max(sum(ta ? right * left : left * right, k) + bias(j), 0.0);
                                   })},
                          Rule::Product);
        }
}

/// A thread has as many neighbours of a row as divide it; rows without terms are zeros.
TEST(Choose, SortedTermsOfRowsOfAnyWidth) {
    const int64_t terms = 2500;
    std::mt19937 random(7);
    for (const auto& [words, width, vector] : {std::array<int64_t, 3>{18000, 24, 8}, {72000, 6, 2}, {62000, 7, 1}}) {
        Tensor ids = input("ids", i32, {terms}), dy = input("dy", f32, {terms, width});
        Axis p = reduce_axis("p", terms);
        Tensor d = compute("d", {words, width},
                           [&](Expr w, Expr j) { return sum(select(cast(i64, ids(p)) == w, dy(p, j), 0.0), p); });
        const schedules::Choices picked(schedules::Picks{{"d.terms", "sorted"}});
        const Schedule s = schedules::choose_schedule({d}, target("sm_90a"));
        const std::string vectors = fmt::format(", {}, {{\"part\", \"element\"}})", vector);
        EXPECT_EQ(s.trace_as_cpp().find(vectors) != std::string::npos, vector > 1) << s.trace_as_cpp();
        Runner runner(s, open_device("emulated"));
        std::vector<int32_t> rows(terms);
        std::vector<float> values(terms * width), expected(words * width, 0.0f);
        for (int32_t& row : rows)
            row = static_cast<int32_t>(random() % (words + 50)) % (random() % 2 == 0 ? 40 : 80000);
        for (float& value : values) value = static_cast<float>(random() % 9) - 4.0f;
        for (int64_t t = 0; t < terms; ++t)
            for (int64_t j = 0; j < width && rows[t] < words; ++j)
                expected[rows[t] * width + j] += values[t * width + j];
        runner.set("ids", std::span<const int32_t>(rows)).set("dy", std::span<const float>(values)).run();
        EXPECT_EQ(runner.read<float>("d"), expected) << words << " x " << width;
    }
}

TEST(Choose, GradientsOfLargeTables) {
    for (auto [terms, words, rule] : {std::tuple<int64_t, int64_t, Rule>{6, 12, Rule::SharedReduction},
                                      {60, 6000, Rule::Listed},
                                      {1200, 6000, Rule::Listed},
                                      {2048, 40, Rule::Sorted}}) {
        Tensor ids = input("ids", i32, {terms}), dy = input("dy", f32, {terms, 24});
        Axis p = reduce_axis("p", terms);
        Tensor d =
            compute("d", {words, 24}, [&](Expr w, Expr j) { return sum(select(ids(p) == w, dy(p, j), 0.0), p); });
        expect_chosen({d}, rule);
    }
}

TEST(Choose, WhatIsNoProductOfTwoMatrices) {
    constexpr int64_t M = 9, K = 40;
    Tensor a = input("a", f32, {M, K}), b = input("b", f32, {M, K});
    Axis k = reduce_axis("k", K);
    expect_chosen({compute("gram", {M, M}, [&](Expr i, Expr j) { return sum(a(i, k) * (a(j, k) - a(i, 0)), k); })},
                  Rule::SharedReduction);
    expect_chosen({compute("rows", {M, 3}, [&](Expr i, Expr) { return sum(a(i, k) * b(i, k), k); })},
                  Rule::SharedReduction);
    expect_chosen({compute("shifted", {M, M}, [&](Expr i, Expr j) { return sum(a(i, k) * b(M - 1 - j, k), k); })},
                  Rule::SharedReduction);
    Axis all = reduce_axis("all", M);
    expect_chosen({compute("all", {},
                           [&] {
                               return sum(a(all, k) + 1, std::vector<Axis>{all, k});
                           })},
                  Rule::SharedReduction);
}

/// Of windows: taps and channels together are the terms; loops whose length depends on the element stay in a thread.
TEST(Choose, ReductionsOverSeveralAxes) {
    Tensor x = input("x", f32, {2, 9, 9, 5}), w = input("w", f32, {40, 3, 3, 5});
    auto windows = [&](int64_t stride) {
        Axis r = reduce_axis("r", 3), q = reduce_axis("q", 3), c = reduce_axis("c", 5);
        return compute("y", {2, 3, 3, 40}, [&](Expr n, Expr i, Expr j, Expr f) {
            return sum(x(n, i * stride + r, j * stride + q, c) * w(f, r, q, c), {r, q, c});
        });
    };
    Tensor dy = input("dy", f32, {2, 3, 3, 40});
    for (int64_t stride : {1, 2, 3}) {
        expect_chosen({windows(stride)}, Rule::SharedReduction);
        expect_chosen({gradients(windows(stride), dy, {x})[0]}, Rule::SharedReduction);  // over 40 filters
    }
    Axis r = reduce_axis("r", 3), q = reduce_axis("q", 3);
    Tensor small = compute("small", {2, 3, 3, 5}, [&](Expr n, Expr i, Expr j, Expr c) {
        return sum(x(n, i + r, j + q, c), {r, q});
    });
    expect_chosen({small}, Rule::OneThreadEach);
}

/// Gradients of biases, and what is like them: many terms of results side by side, in blocks that share them.
TEST(Choose, ColumnsOfManyRows) {
    const Tensor dy = input("dy", bf16, {5, 30, 20, 24}), a = input("a", f32, {1100, 9});
    Axis n = reduce_axis("n", 5), i = reduce_axis("i", 30), j = reduce_axis("j", 20), r = reduce_axis("r", 1100);
    for (const Tensor& y : {compute("bias", {24},
                                    [&](Expr f) {
                                        return cast(bf16, sum(cast(f32, dy(n, i, j, f)), {n, i, j}));
                                    }),
                            compute("largest", {9}, [&](Expr f) { return 1 + reduce_max(abs(a(r, f)), r); })}) {
        const Schedule s = schedules::choose_schedule({y}, target("sm_90a"));
        EXPECT_NE(s.trace_as_cpp().find("Loop block = s.fuse(chunk, tile, \"block\");"), std::string::npos)
            << s.trace_as_cpp();
        const Bindings bindings = integers_for({y}, 1);
        Executable executable(build(s), open_device("emulated"));
        const auto differs = difference(y.name(), run_on(executable, bindings)[0], interpret_plain({y}, bindings)[0]);
        EXPECT_FALSE(differs) << *differs;
    }
}

TEST(Choose, ManyResultsAndElementwise) {
    Tensor a = input("a", f32, {70, 90});
    Axis k = reduce_axis("k", 3);
    expect_chosen({compute("wide", {70, 88}, [&](Expr i, Expr j) { return sum(a(i, j + k), k); })},
                  Rule::OneThreadEach);
    Tensor twice = compute("twice", {70, 90}, [&](Expr i, Expr j) { return a(i, j) * 2; });
    expect_chosen({compute("turned", {90, 70}, [&](Expr i, Expr j) { return twice(j, i) - twice(69 - j, i); })},
                  Rule::OneThreadEach);
    expect_chosen({compute("one", {}, [&] { return a(3, 4) + 1; })}, Rule::OneThreadEach);
    expect_chosen({compute("none", {0, 5}, [&](Expr i, Expr j) { return a(i, j); })}, Rule::OneThreadEach);
}

TEST(Choose, SeveralOutputsAndStages) {
    constexpr int64_t Rows = 6, Columns = 37;
    Tensor a = input("a", f32, {Rows, Columns});
    Axis c = reduce_axis("c", Columns);
    Tensor top = compute("top", {Rows}, [&](Expr i) { return reduce_max(a(i, c), c); });
    Tensor below = compute("below", {Rows, Columns}, [&](Expr i, Expr j) { return a(i, j) - top(i); });
    Tensor total = compute("total", {Rows}, [&](Expr i) { return sum(below(i, c), c); });
    expect_chosen({below, total}, Rule::Rows);
    expect_chosen(compute_tuple("best", {Rows}, [&](const std::vector<Expr>& i) { return argmax(a(i[0], c), c); }),
                  Rule::Rows);
}

/// Whose terms may not change places: the last of them.
TEST(Choose, NonCommutativeReducer) {
    Tensor a = input("a", f32, {5, 40});
    Axis c = reduce_axis("c", 40);
    Reducer last = make_reducer(
        "last", {constant(f32, 0.0), constant(f32, 0.0)},
        [](const std::vector<Expr>& x, const std::vector<Expr>& y) {
            return std::vector<Expr>{select(y[1] != 0, y[0], x[0]), max(x[1], y[1])};
        },
        false);
    expect_chosen({compute("last", {5},
                           [&](Expr i) {
                               return reduce(last, {a(i, c), abs(a(i, c))}, {c})[0];
                           })},
                  Rule::OneThreadEach);
}

/// Errors and steps name the line that asked for a schedule, steps the rule's line behind it.
TEST(Choose, CitesTheCaller) {
    Tensor a = input("a", f32, {8, 8});
    std::string line = fmt::format("choose_test.cpp:{}", __LINE__ + 1);
    EXPECT_ERROR(schedules::choose_schedule({a}, target("sm_90a")), line + ": Schedule: 'a' is an input");
    Tensor b = compute("b", {8, 8}, [&](Expr i, Expr j) { return a(j, i); });
    line = fmt::format("choose_test.cpp:{}", __LINE__ + 1);
    Schedule s = schedules::choose_schedule({b}, target("sm_90a"));
    EXPECT_FALSE(s.trace().empty());
    for (const Step& step : s.trace())
        EXPECT_EQ(step.file_line.find(line + ", share_reduction.cpp:"), 0u) << step.file_line;
    line = fmt::format("choose_test.cpp:{}", __LINE__ + 1);
    s.set_memory(b, Memory::Global);
    EXPECT_EQ(s.trace().back().file_line, line);
    std::function<Schedule(const std::vector<Tensor>&, const Target&)> function = schedules::choose_schedule;
    EXPECT_EQ(function({b}, target("sm_90a")).trace().size() + 1, s.trace().size());
}

}  // namespace
}  // namespace tw

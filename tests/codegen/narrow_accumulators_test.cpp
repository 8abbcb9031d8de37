// Places of the largest elements: 32 bits where all have no more, and what stands for none.
#include <cmath>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "dsl/schedule.h"
#include "run_threads.h"

namespace tw::codegen {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t rows = 9, columns = 77;

/// What is chosen from the columns of each row, by 64 threads.
struct Best {
    Tensor x = input("x", f32, {rows, columns});
    Axis k = reduce_axis("k", columns);
    std::vector<Tensor> outputs;

    explicit Best(const std::function<std::vector<Expr>(const Best&, const Expr& row)>& choose) {
        outputs = compute_tuple("best", {rows}, [&](const std::vector<Expr>& i) { return choose(*this, i[0]); });
    }
    Schedule scheduled() const {
        Schedule s(outputs, target("sm_90a"));
        s.bind(s.data_loops(outputs[0])[0], grid.x);
        s.bind(s.split(s.reduce(outputs[0]), 64, Tail::Mask)[1], thread);
        return s;
    }
};

std::string cuda_of(const Schedule& s) { return lower(s.tree(), s.target()).kernels[0].cuda; }

TEST(NarrowAccumulators, AreRightWhereNoneIsFoundToo) {
    Best best([](const Best& b, const Expr& row) { return argmax(b.x(row, b.k), b.k); });
    const Schedule s = best.scheduled();
    const std::string cuda = cuda_of(s);
    EXPECT_THAT(cuda, HasSubstr("int best_argmax_1;"));
    EXPECT_THAT(cuda, HasSubstr("int best_argmax_1_meet[2];"));
    EXPECT_THAT(cuda, HasSubstr("best_argmax_1 == 2147483647 ? 9223372036854775807ll : best_argmax_1"));
    std::mt19937 random(291301);
    std::vector<double> x(rows * columns);
    for (double& each : x) each = static_cast<double>(random() % 5);  // many are equal
    for (int64_t q = 0; q < columns; ++q) x[q] = std::nan(""), x[columns + q] = -INFINITY;
    Machine machine;
    machine.memory["x"] = x;
    for (const char* name : {"best_0", "best_1"}) machine.memory[name] = std::vector<double>(rows, std::nan(""));
    ThreadKernel last;
    LowerOptions options;
    options.printed = [&](const ThreadKernel& kernel) { last = kernel; };
    lower(s.tree(), s.target(), options);
    run_threads(last, machine);
    for (int64_t i = 0; i < rows; ++i) {
        double value = -INFINITY, place = static_cast<double>(std::numeric_limits<int64_t>::max());
        for (int64_t q = columns - 1; q >= 0; --q)
            if (x[i * columns + q] >= value) value = x[i * columns + q], place = static_cast<double>(q);
        EXPECT_EQ(machine.memory["best_0"][i], value) << i;
        EXPECT_EQ(machine.memory["best_1"][i], place) << i;
    }
}

/// What stands for none goes on to arrays that only take it from others.
TEST(NarrowAccumulators, AreRightBehindOtherArrays) {
    Best best([](const Best& b, const Expr& row) { return argmax(b.x(row, b.k), b.k); });
    const Tensor y = compute("y", {rows}, [&](Expr i) { return best.outputs[1](i); });
    Schedule s({y}, target("sm_90a"));
    const Loop row = s.loops<1>(y)[0];
    s.bind(row, grid.x);
    s.at(best.outputs[0], row);
    s.set_memory(best.outputs[0], Memory::Registers);
    s.bind(s.split(s.reduce(best.outputs[0]), 64, Tail::Mask)[1], thread);
    Machine machine;
    machine.memory["x"] = std::vector<double>(rows * columns, std::nan(""));
    machine.memory["y"] = std::vector<double>(rows, std::nan(""));
    ThreadKernel last;
    LowerOptions options;
    options.printed = [&](const ThreadKernel& kernel) { last = kernel; };
    lower(s.tree(), s.target(), options);
    run_threads(last, machine);
    for (int64_t i = 0; i < rows; ++i)
        EXPECT_EQ(machine.memory["y"][i], static_cast<double>(std::numeric_limits<int64_t>::max())) << cuda_of(s);
}

/// A product of a place and a large number, numbers that are added, and places beyond 32 bits keep 64.
TEST(NarrowAccumulators, StayWideWhereNumbersMayBe) {
    auto text_of = [](int64_t factor) {
        return cuda_of(Best([&](const Best& b, const Expr& row) {
                           const Expr none = constant(i64, std::numeric_limits<int64_t>::max());
                           Reducer first = make_reducer(
                               "first", {constant(f32, -INFINITY), none}, [](const auto& a, const auto& c) {
                                   const Expr better = c[0] > a[0] || (c[0] == a[0] && c[1] < a[1]);
                                   return std::vector<Expr>{select(better, c[0], a[0]), select(better, c[1], a[1])};
                               });
                           return tw::reduce(first, {b.x(row, b.k), b.k * factor}, {b.k});
                       }).scheduled());
    };
    const int64_t last = 127, most = std::numeric_limits<int32_t>::max();  // of both rounds of 64
    EXPECT_THAT(text_of((most - 1) / last), HasSubstr("int best_first_1;"));
    EXPECT_THAT(text_of(most / last + 1), HasSubstr("long long best_first_1;"));
    const std::string added = cuda_of(Best([](const Best& b, const Expr& row) {
                                          Reducer both =
                                              make_reducer("both", {constant(f32, 0.0), constant(i64, int64_t{0})},
                                                           [](const auto& a, const auto& c) {
                                                               return std::vector<Expr>{a[0] + c[0], a[1] + c[1]};
                                                           });
                                          return tw::reduce(both, {b.x(row, b.k), b.k * 1}, {b.k});
                                      }).scheduled());
    EXPECT_THAT(added, HasSubstr("long long best_both_1;"));
    EXPECT_THAT(added, Not(HasSubstr("int best_both_1;")));
}

}  // namespace
}  // namespace tw::codegen

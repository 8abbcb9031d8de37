// Registers at the edge of a tile that change by what memory holds: without a branch, by reads made in front of all.
#include <random>

#include <gtest/gtest.h>

#include "ops/program.h"
#include "ops/runner.h"
#include "schedules/catalog.h"

namespace tw::schedules {
namespace {

void expect_right(const Schedule& s) {
    Runner runner(s, open_device("emulated"));
    runner.set(random_bindings(s.outputs(), std::random_device()()));
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text << "\n" << build(s).cuda();
}

/// The text from where the sums grow to the end of that loop.
std::string accumulation(const Schedule& s) {
    const std::string text = build(s).cuda();
    const size_t begin = text.find(": accumulate");
    return begin == std::string::npos ? "" : text.substr(begin, text.find("\n        }\n", begin) - begin);
}

TEST(ChooseInside, OfSumsOfATensorCoreByScalesOfRows) {
    for (const char* kernel : {"gemm_e4m3_100x200x256_tb_scaled", "gemm_e4m3_72x136x384_tb_scaled"}) {
        const Schedule s = find_library_kernel(kernel)->make(target("sm_90a"));
        const std::string text = accumulation(s);
        EXPECT_NE(text.find("scale_a_values["), std::string::npos) << text;
        EXPECT_EQ(text.find("if ("), std::string::npos) << text;
        expect_right(s);
    }
}

/// A thread has 4 x 4 sums, of which the last ones lie outside.
TEST(ChooseInside, OfProductsOfColumnsWithoutStaging) {
    const int64_t m = 30, n = 22, k = 40;
    const Tensor a = input("a", f32, {k, m}), b = input("b", f32, {k, n});
    const Axis t = reduce_axis("t", k);
    const Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(a(t, i) * b(t, j), t); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [rows, row] = s.split(i, 4, Tail::Mask, {"rows", "row"});
    auto [columns, column] = s.split(j, 4, Tail::Mask, {"columns", "column"});
    s.order({rows, columns, s.reduce(c), row, column});
    s.bind(rows, grid.x);
    s.bind(columns, thread);
    s.bind(row, unrolled);
    s.bind(column, unrolled);
    const std::string text = accumulation(s);
    EXPECT_NE(text.find("a_values"), std::string::npos) << text;
    EXPECT_NE(text.find("b_values"), std::string::npos) << text;
    expect_right(s);
}

/// A thread would have 5 rows, of which the tensor has 2: no registers stand for the others.
TEST(ChooseInside, OnlyWhereAllRegistersExist) {
    const Tensor x = input("x", f32, {2, 37});
    const Axis k = reduce_axis("k", 37);
    const Tensor total = compute("total", {2}, [&](Expr i) { return sum(x(i, k), k); });
    const Tensor y = compute("y", {2, 37}, [&](Expr i, Expr) { return total(i); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [lane, v] = s.split(i, 5, Tail::Mask, {"lane", "v"});
    auto [outer, inner] = s.split(lane, 32, Tail::Mask, {"outer", "inner"});
    s.stage(y, Memory::Registers, inner);
    expect_right(s);
}

}  // namespace
}  // namespace tw::schedules

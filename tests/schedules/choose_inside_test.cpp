// Registers at the edge of a tile that change by what memory holds: without a branch, by reads made in front of all.
#include <gtest/gtest.h>

#include "tests/schedules/weighted_parts.h"

namespace tw::schedules {
namespace {

/// The text from where the sums grow to the end of that loop, or to where a stage is given back.
std::string accumulation(const Schedule& s) {
    const std::string text = build(s).cuda();
    const size_t begin = text.find(": accumulate");
    if (begin == std::string::npos) return "";
    const size_t end = text.find("\n        }\n", begin), given_back = text.find("mbarrier_arrive", begin);
    const std::string found = text.substr(begin, std::min(end, given_back) - begin);
    return given_back < end ? found.substr(0, found.rfind('\n')) : found;
}

TEST(ChooseInside, OfSumsOfATensorCoreByScalesOfRows) {
    const Schedule s = weighted_parts(100, 4);
    const std::string text = accumulation(s);
    EXPECT_NE(text.find("weight_values["), std::string::npos) << text;
    EXPECT_EQ(text.find("if ("), std::string::npos) << text;
    expect_right(s);
}

// Zeros for the few scales of a thread let its many sums do without masks: rows that are not there are stored nowhere.
TEST(ChooseInside, NothingWhereAFewZerosSpareTheMasks) {
    for (const Schedule& s :
         {find_library_kernel("gemm_e4m3_101x200x640_tb_scaled_tile64x128x128g1s3")->make(target("sm_90a")),
          find_library_kernel("gemm_e4m3_100x200x640_tb_scaled_tile64x128x128g1s3")->make(target("sm_90a")),
          weighted_parts(100, 4, Memory::Registers)}) {
        const std::string text = accumulation(s);
        ASSERT_NE(text, "") << build(s).cuda();
        EXPECT_EQ(text.find(" ? "), std::string::npos) << text;
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

// Costs by hand for a staged product: 4 x 8 blocks of 16 x 16 threads, k in chunks of 10.
#include "ops/nest_costs.h"

#include <map>

#include <gtest/gtest.h>

#include "dsl/schedule.h"

namespace tw {
namespace {

std::map<std::string, LoopCost> by_name(const std::vector<LoopCost>& costs) {
    std::map<std::string, LoopCost> result;
    for (const LoopCost& row : costs) result.emplace(row.name, row);  // the first of a name
    return result;
}

struct Product {
    Tensor a = input("a", f32, {64, 40}), b = input("b", f32, {40, 128});
    Axis k = reduce_axis("k", 40);
    Tensor c = compute("c", {64, 128}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    Schedule s{{c}, target("sm_90a")};
};

TEST(NestCosts, OfAPlainProduct) {
    Product p;
    auto rows = by_name(nest_costs(p.s.tree()));
    EXPECT_EQ(rows["k"].cost.flops, 2 * 40);
    EXPECT_EQ(rows["k"].cost.global_bytes, 2 * 4 * 40);
    EXPECT_EQ(rows["j"].cost.global_bytes, 128 * (2 * 4 * 40 + 4));
    EXPECT_EQ(rows["c"].cost.flops, 2.0 * 64 * 128 * 40);
    EXPECT_EQ(rows["c"].cost.global_bytes, 64.0 * 128 * (2 * 4 * 40 + 4));
    EXPECT_EQ(rows["c"].depth, 0);
    EXPECT_EQ(rows["k"].depth, 3);
}

TEST(NestCosts, StagingMovesTrafficToSharedMemory) {
    Product p;
    auto [i, j] = p.s.loops<2>(p.c);
    auto [bi, ti] = p.s.split(i, 16);
    auto [bj, tj] = p.s.split(j, 16);
    auto [ko, ki] = p.s.split(p.s.reduce(p.c), 10);
    p.s.order({bi, bj, ko, ti, tj, ki});
    p.s.bind(bi, grid.y);
    p.s.stage(p.c, p.b, Memory::Shared, ko);
    auto rows = by_name(nest_costs(p.s.tree()));
    double tile_from_global = 10 * 16 * 4, a_from_global = 16 * 16 * 10 * 4;
    EXPECT_EQ(rows["k_outer"].cost.global_bytes, 4 * (tile_from_global + a_from_global));
    EXPECT_EQ(rows["k_outer"].cost.shared_bytes, 4 * (tile_from_global + 16 * 16 * 10 * 4));
    EXPECT_EQ(rows["k_outer"].cost.flops, 4 * 2 * 16 * 16 * 10);
    EXPECT_EQ(rows["i_outer"].level, "grid.y");
    EXPECT_EQ(rows["k_outer"].level, "");
    EXPECT_EQ(rows["i_outer"].cost.global_bytes, rows["c"].cost.global_bytes);
}

TEST(NestCosts, ASharedFillCountsOnceForTheThreadsAround) {
    Product p;
    auto [i, j] = p.s.loops<2>(p.c);
    auto [bi, ti] = p.s.split(i, 16);
    auto [ko, ki] = p.s.split(p.s.reduce(p.c), 10);
    p.s.order({bi, ti, j, ko, ki});
    p.s.bind(bi, grid.x);
    p.s.bind(ti, thread);
    p.s.stage(p.c, p.a, Memory::Shared, ko);  // 16 rows, for all threads
    auto rows = by_name(nest_costs(p.s.tree()));
    double fill = 16 * 10 * 4, one_thread = 10 * 4;
    EXPECT_EQ(rows["k_outer"].cost.global_bytes, 4 * (fill + one_thread));
    EXPECT_EQ(rows["j"].cost.global_bytes, 128 * (4 * (fill + one_thread) + 4));
    EXPECT_EQ(rows["i_inner"].cost.global_bytes, 128 * (4 * (fill + 16 * one_thread) + 16 * 4));
    EXPECT_EQ(rows["c"].cost.global_bytes, 4 * rows["i_inner"].cost.global_bytes);
}

/// A stage that is computed into shared memory: its reduction is done once too.
TEST(NestCosts, AComputedTileCountsOnceForTheThreadsAround) {
    Tensor x = input("x", f32, {32, 20});
    Axis k = reduce_axis("k", 20);
    Tensor m = compute("m", {32}, [&](Expr i) { return sum(x(i, k), k); });
    Tensor y = compute("y", {32}, [&](Expr i) { return m(i) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    Loop i = s.loops<1>(y)[0];
    auto [io, ii] = s.split(i, 8);
    s.bind(ii, thread);
    s.at(m, ii);
    s.set_memory(m, Memory::Shared);
    auto rows = by_name(nest_costs(s.tree()));
    EXPECT_EQ(rows["i_outer"].cost.flops, 4 * (8 * 20 + 8));
}

TEST(NestCosts, NamedSizesCountAtTheirLargest) {
    Expr n = size("n", {.min = 1, .max = 1000});
    Tensor x = input("x", f32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return x(i) + 1.0; });
    auto rows = nest_costs(Schedule({y}, target("sm_90a")).tree());
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[1].iterations, 1000);
    EXPECT_EQ(rows[0].cost.flops, 1000);
    EXPECT_EQ(rows[0].cost.global_bytes, 8000);
}

}  // namespace
}  // namespace tw

// Updates behind the body of another stage's loop: what an iteration has made is combined with elements in memory.
// Whole numbers, bit for bit.
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class FollowingUpdates : public RandomCases {
protected:
    FollowingUpdates() : RandomCases(59) {}
};
TW_ON_EACH_DEVICE(FollowingUpdates);

/// How often each number occurs among the elements of a product, counted where they are made.
TEST_P(FollowingUpdates, CountTheElementsOfAProduct) {
    for (int round = 0; round < 8; ++round) {
        const int64_t m = between(1, 90), n = between(1, 60), k = 8 * between(1, 6), bins = between(1, 9);
        const bool kept = chance();
        Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {n, k});
        Axis r = reduce_axis("r", k), i1 = reduce_axis("i1", m), j1 = reduce_axis("j1", n);
        Tensor c =
            compute("c", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
        Tensor counts = compute("counts", {bins}, [&](Expr bin) {
            const Expr of = cast(i64, c(i1, j1)) % bins;
            return sum(select(of == bin, 1, 0), {i1, j1});
        });
        Schedule s(kept ? std::vector{c, counts} : std::vector{counts}, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [block, row] = s.split(i, 32, Tail::Mask);
        auto [tile, column] = s.split(j, 16, Tail::Mask);
        auto [warps, in_warp] = s.split(row, 16);
        auto [step, term] = s.split(s.reduce(c), 16, Tail::Mask);
        s.order({block, tile, warps, step, in_warp, column, term});
        s.bind(block, grid.y);
        s.bind(tile, grid.x);
        s.bind(warps, warp);
        Stage updates = s.scatter(counts, Combine::Atomic);
        s.at(updates, warps);
        if (kept) s.stage(c, Memory::Registers, warps);
        for (const Tensor& operand : {a, b}) s.stage(c, operand, Memory::Shared, step);
        s.mma(c, mma_sync, {.m = in_warp, .n = column, .k = term});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(s.outputs(), round));
        EXPECT_EQ(replay(s.save(), s.outputs(), device_target()).to_string(), s.to_string());
    }
}

/// Of the terms of rows' sums, tile by tile, sums along columns.
TEST_P(FollowingUpdates, AddTermsOfRowsAlongColumns) {
    for (int round = 0; round < 12; ++round) {
        const int64_t rows = between(1, 70), columns = between(1, 90), block_rows = 4 * between(1, 8);
        Tensor x = input("x", f32, {rows, columns});
        Tensor e = compute("e", {rows, columns}, [&](Expr i, Expr j) { return x(i, j) * x(i, j) + 1.0; });
        Axis j = reduce_axis("j", columns), i = reduce_axis("i", rows);
        Tensor l = compute("l", {rows}, [&](Expr i) { return sum(e(i, j), j); });
        Tensor of_columns = compute("of_columns", {columns}, [&](Expr j) { return sum(e(i, j) * 3.0, i) + 1.0; });
        Schedule s({l, of_columns}, device_target());
        auto [block, row] = s.split(s.loops<1>(l)[0], block_rows, Tail::Mask);
        auto [step, term] = s.split(s.reduce(l), between(1, 24), Tail::Mask);
        s.order({block, step, row, term});
        s.bind(block, grid.x);
        s.bind(row, thread);
        const int64_t parts = chance() ? block_rows : block_rows / 4;
        Stage updates = s.rfactor(of_columns, s.split(s.reduce(of_columns), parts, Tail::Mask)[0], Combine::Atomic);
        s.at(updates, step);
        s.at(e, step);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(s.outputs(), round));
        EXPECT_EQ(replay(s.save(), s.outputs(), device_target()).to_string(), s.to_string());
    }
}

}  // namespace
}  // namespace tw

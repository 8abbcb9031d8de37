// Where tiles of matrix instructions lie in the lines of shared memory, and in a warp's lanes: whole numbers, bit for
// bit.
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class MmaLines : public RandomCases {
protected:
    MmaLines() : RandomCases(7) {}
};
TW_ON_EACH_DEVICE(MmaLines);

/// Columns of warpgroups begin inside of the operand's lines: right as far as one line has them all, else refused.
TEST_P(MmaLines, BeginsInsideOfLines) {
    int refused = 0;
    for (const int64_t columns : {8, 16, 24, 32, 40, 48, 64, 96}) {
        Tensor a = input("a", bf16, {64, 32}), b = input("b", bf16, {32, 2 * columns});
        Axis r = reduce_axis("r", 32);
        Tensor c = compute("c", {64, 2 * columns},
                           [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(r, j)), r); });
        Schedule s({c}, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [block, row] = s.split(i, 64);
        auto [group, column] = s.split(j, columns);
        auto [step, term] = s.split(s.reduce(c), 32);
        s.order({block, group, step, row, column, term});
        s.bind(block, grid.x);
        s.bind(group, warpgroup);
        for (const Tensor& operand : {a, b}) s.stage(c, operand, Memory::Shared, block);
        s.mma(c, wgmma, {.m = row, .n = column, .k = term});
        SCOPED_TRACE(columns);
        try {
            build(s);
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("beyond the end of lines of"), std::string::npos) << error.what();
            ++refused;
            continue;
        }
        expect_declared(s, whole_numbers({c}, 5));
    }
    EXPECT_EQ(refused, 4);
}

/// A warp stores matrices, and loads them again turned or as they are: a lane's row is of elements that others have, so
/// that they meet in between, also where each warp has a matrix of its own.
TEST_P(MmaLines, MatricesThatAWarpStoresAndLoads) {
    for (const bool turned : {true, false})
        for (const int64_t warps : {1, 4}) {
            Tensor a = input("a", bf16, {4, 16, 16}), b = input("b", bf16, {4, 16, 16}),
                   x = input("x", bf16, {4, 16, 16});
            Axis k = reduce_axis("k", 16), r = reduce_axis("r", 16);
            Tensor h = compute("h", {4, 16, 16}, [&](Expr g, Expr i, Expr j) {
                return cast(bf16, sum(cast(f32, a(g, i, k)) * cast(f32, b(g, j, k)), k));
            });
            Tensor t = compute("t", {4, 16, 16}, [&](Expr g, Expr p, Expr j) {
                return turned ? sum(cast(f32, x(g, r, p)) * cast(f32, h(g, r, j)), r)
                              : sum(cast(f32, h(g, p, r)) * cast(f32, x(g, r, j)), r);
            });
            Schedule s({t}, device_target());
            auto [g, i, j] = s.loops<3>(t);
            auto [block, own] = s.split(g, warps, {"block", "own"});
            auto [tile, term] = s.split(s.reduce(t), 16);
            s.order({block, own, tile, i, j, term});
            s.bind(block, grid.x);
            s.bind(own, warp);
            s.at(h, own);
            s.set_memory(h, Memory::Shared);
            auto [h_g, h_i, h_j] = s.loops<3>(h);
            auto [h_tile, h_term] = s.split(s.reduce(h), 16);
            s.order({h_g, h_tile, h_i, h_j, h_term});
            s.bind(h_g, warp);
            s.mma(h, mma_sync, {.m = h_i, .n = h_j, .k = h_term});
            s.mma(t, mma_sync, {.m = i, .n = j, .k = term});
            SCOPED_TRACE(s.trace_as_cpp());
            EXPECT_NE(build(s).cuda().find("__sync"), std::string::npos);
            expect_declared(s, whole_numbers({t}, 5));
        }
}

/// Several instructions side by side, of which the second begins inside of a line, or with one.
TEST_P(MmaLines, BeginsEachInstructionWithALine) {
    for (const auto& [columns, refused] :
         {std::pair(256, false), std::pair(288, true), std::pair(320, true), std::pair(384, false)}) {
        Tensor a = input("a", bf16, {64, 32}), b = input("b", bf16, {32, columns});
        Axis r = reduce_axis("r", 32);
        Tensor c = compute("c", {64, columns},
                           [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(r, j)), r); });
        Schedule s({c}, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [block, row] = s.split(i, 64);
        auto [step, term] = s.split(s.reduce(c), 32);
        s.order({block, step, row, j, term});
        s.bind(block, grid.x);
        for (const Tensor& operand : {a, b}) s.stage(c, operand, Memory::Shared, block);
        s.mma(c, wgmma, {.m = row, .n = j, .k = term});
        SCOPED_TRACE(columns);
        if (refused)
            EXPECT_ERROR(build(s), "'b_shared' is read beyond the end of lines of");
        else
            expect_declared(s, whole_numbers({c}, 5));
    }
}
}  // namespace
}  // namespace tw

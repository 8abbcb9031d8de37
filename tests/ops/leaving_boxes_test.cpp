// Results that leave shared memory as boxes, from several buffers in turn.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include "dsl/schedule.h"
#include "ops/program.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

class LeavingBoxes : public RandomCases {
protected:
    LeavingBoxes() : RandomCases(17) {}
};
TW_ON_EACH_DEVICE(LeavingBoxes);

struct Sheet {
    Tensor y;
    Loop tile, piece;
};
/// y = x + x', of which a block makes bands of rows one after another in pieces of 32 columns.
Sheet sheet(Schedule& s, const Tensor& y, int64_t rows) {
    auto [i, j] = s.loops<2>(y);
    auto [tile, row] = s.split(i, rows, Tail::Mask);
    auto [piece, column] = s.split(j, 32);
    s.order({tile, piece, row, column});
    s.persistent({tile}, {.blocks = 3});
    s.bind(column, thread);
    s.via(s.stage(y, Memory::Shared, piece), Copy::Tma);
    return {y, tile, piece};
}
Tensor sum_of_two(int64_t rows, int64_t columns) {
    const Tensor x = input("x", f32, {rows, columns});
    return compute("y", {rows, columns}, [&](Expr i, Expr j) { return x(i, j) + x(i, columns - 1 - j); });
}

/// Of several dimensions, none of them a whole number of eight rows: swizzled lines are numbered across all of them.
TEST_P(LeavingBoxes, OfSeveralDimensionsHaveTheirRows) {
    for (int round = 0; round < 16; ++round) {
        const int64_t outer = between(1, 3), inner = between(1, 8), rows = between(1, 9), columns = 8 << between(1, 4);
        const Type type = chance() ? bf16 : f32;
        const Shape shape{outer * between(1, 3), inner, rows, columns};
        const Tensor x = input("x", type, shape);
        const Tensor y = compute(
            "y", shape, [&](Expr n, Expr i, Expr j, Expr c) { return cast(type, cast(f32, x(n, i, j, c)) + 1.0); });
        Schedule s({y}, device_target());
        if (!s.target().has_tma) GTEST_SKIP() << "needs boxes";
        auto [n, i, j, c] = s.loops<4>(y);
        auto [tile, in_tile] = s.split(n, outer, {"tile", "in_tile"});
        auto [piece, element] = s.split(c, 8, {"piece", "element"});
        s.order({tile, in_tile, i, j, piece, element});
        s.bind(tile, grid.x);
        s.bind(j, thread);
        s.bind(piece, thread);
        s.via(s.stage(y, Memory::Shared, tile), Copy::Tma);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000))));
    }
}

/// Segments of a loop that is cut would fill the tile that boxes of the one before leave.
TEST(LeavingBoxesInTurn, StandInNoLoopThatIsCut) {
    const Tensor y = sum_of_two(16, 96);
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [piece, column] = s.split(j, 32);
    s.order({piece, i, column});
    s.bind(column, thread);
    s.via(s.stage(y, Memory::Shared, piece), Copy::Tma);
    s.cut(piece, {2});
    EXPECT_ERROR(build(s), "other parts of the kernel use 'y' too");
}

/// All but the last `stages` - 1 groups of boxes have been read before a buffer fills again.
TEST_P(LeavingBoxes, OfASheetTakeBuffersInTurn) {
    for (int round = 0; round < 12; ++round) {
        const int stages = between(2, 4);
        const int64_t columns = 32 * stages * between(1, 3);
        const Tensor y = sum_of_two(between(1, 60), columns);
        Schedule s({y}, device_target());
        if (!s.target().has_tma) GTEST_SKIP() << "needs boxes";
        s.pipeline(sheet(s, y, between(1, 9)).piece, {.stages = stages});
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
        const Program program = build(s);
        EXPECT_THAT(program.explain(), HasSubstr(fmt::format("{} stages, boxes of one leave", stages)));
        EXPECT_THAT(program.cuda(), HasSubstr(fmt::format("tma_store_wait_read<{}>()", stages - 1)));
        expect_declared(s, whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000))));
    }
}

/// The sums of a product in registers, of which pieces leave while the next ones are rounded.
TEST_P(LeavingBoxes, OfAProductTakeBuffersInTurn) {
    const Tensor a = input("a", bf16, {200, 64}), b = input("b", bf16, {128, 64});
    const Axis k = reduce_axis("k", 64);
    const Tensor c = compute(
        "c", {200, 128}, [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k)); });
    Schedule s({c}, device_target());
    if (!s.target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    const Stage total = s.accumulators(c);
    auto [i, j] = s.loops<2>(c);
    auto [tile, row] = s.split(i, 64, Tail::Mask);
    auto [piece, column] = s.split(j, 32);
    s.at(total, tile);
    s.set_memory(total, Memory::Registers);
    s.order({tile, piece, row, column});
    s.persistent({tile}, {.blocks = 2});
    auto [step, in_step] = s.split(s.reduce(total), 32);
    const std::vector<Loop> own = s.data_loops(total);
    s.order({step, own[0], own[1], in_step});
    s.stage(total, a, Memory::Shared, step);
    s.stage(total, b, Memory::Shared, step);
    s.via(s.stage(c, Memory::Shared, piece), Copy::Tma);
    s.pipeline(piece, {.stages = 2});
    s.mma(total, wgmma, {.m = own[0], .n = own[1], .k = in_step});
    EXPECT_THAT(build(s).cuda(), HasSubstr("tma_store_wait_read<1>()"));
    expect_declared(s, whole_numbers(s.outputs(), 5));
}

/// Rows of several rows of pixels lie one behind another, a line of 128 bytes of each before the next lines, swizzled
/// as accumulators fill them best.
TEST_P(LeavingBoxes, OfSeveralDimensionsLieInSwizzledLines) {
    const int64_t rows = 2 * between(1, 2), columns = 8 * between(1, 4), filters = 64 * between(1, 2);
    const Tensor x = input("x", bf16, {3, 5, columns, 64}), w = input("w", bf16, {filters, 64});
    const Axis k = reduce_axis("k", 64);
    const Tensor y = compute("y", {3, 5, columns, filters}, [&](Expr n, Expr p, Expr q, Expr f) {
        return cast(bf16, sum(cast(f32, x(n, p, q, k)) * cast(f32, w(f, k)), k));
    });
    Schedule s({y}, device_target());
    if (!s.target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    auto [n, p, q, f] = s.loops<4>(y);
    auto [po, pi] = s.split(p, rows, Tail::Mask);
    const Loop pixels = s.fuse(pi, q);
    auto [wi, fi] = s.split(f, 64);
    auto [step, term] = s.split(s.reduce(y), 64);
    s.order({n, po, wi, step, fi, pixels, term});
    const Loop tile = s.fuse(n, po);
    s.bind(tile, grid.x);
    s.bind(wi, warpgroup);
    s.stage(y, x, Memory::Shared, step, As::Matrix);
    s.stage(y, w, Memory::Shared, step);
    s.via(s.stage(y, Memory::Shared, tile), Copy::Tma);
    s.mma(y, wgmma, {.m = fi, .n = pixels, .k = term});
    SCOPED_TRACE(s.trace_as_cpp());
    EXPECT_THAT(build(s).explain(), HasSubstr("rows of [dim 3: 64] swizzled by 128 bytes pitch 64"));
    EXPECT_THAT(build(s).cuda(), HasSubstr("tw::stmatrix_trans<"));
    expect_declared(s, whole_numbers(s.outputs(), 3));
}

/// Else the first piece of a band would take the buffer that the last one before has just filled.
TEST(LeavingBoxesInTurn, AreAMultipleOfTheirBuffers) {
    const Tensor y = sum_of_two(20, 96);
    Schedule s({y}, target("sm_90a"));
    s.pipeline(sheet(s, y, 4).piece, {.stages = 2});
    EXPECT_ERROR(build(s),
                 "leaves as boxes, each iteration from the next of 2 buffers, so the loop needs a multiple of 2 "
                 "iterations; choose other stages, or split it so");
}

}  // namespace
}  // namespace tw

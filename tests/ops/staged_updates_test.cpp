// Updates of elements in global memory that are made in shared memory first: added by threads side by side, or as
// boxes.
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class StagedUpdates : public RandomCases {
protected:
    StagedUpdates() : RandomCases(41) {}

    /// As declared, by boxes or not, and from a trace.
    void expect_sums(const Schedule& s, const Tensor& result, bool boxes, unsigned seed) const {
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), {result}, device_target()).to_string(), s.to_string());
        EXPECT_EQ(build(s).cuda().find("tw::tma_reduce_add(") != std::string::npos, boxes) << build(s).cuda();
        EXPECT_NE(build(s).cuda().find(boxes ? "tw::tma_store_wait_read" : "tw::atomic_add("), std::string::npos);
        expect_declared(s, whole_numbers({result}, seed));
    }
};
TW_ON_EACH_DEVICE(StagedUpdates);

// Blocks share the terms of a product, on either matrix unit.
TEST_P(StagedUpdates, PartsOfAProduct) {
    for (int round = 0; round < 8; ++round) {
        bool boxes = chance(), warpgroups = chance();
        int64_t m = 8 * between(1, 24), n = 8 * between(1, 20), k = 8 * between(1, 40);
        Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {n, k});
        Axis r = reduce_axis("r", k);
        Tensor c =
            compute("c", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
        Schedule s({c}, device_target());
        Stage parts = s.rfactor(c, s.split(s.reduce(c), 32 * between(1, 4), Tail::Mask)[0], Combine::Atomic);
        auto [q, i, j] = s.loops<3>(parts);
        auto [bi, mi] = s.split(i, 64, Tail::Mask);
        auto [bj, nj] = s.split(j, 32, Tail::Mask);
        auto [ko, ki] = s.split(s.reduce(parts), 32, Tail::Mask);
        auto [wi, rows] = s.split(mi, warpgroups ? 64 : 32);
        s.order({q, bi, bj, wi, ko, rows, nj, ki});
        s.bind(q, grid.z);
        s.bind(bi, grid.y);
        s.bind(bj, grid.x);
        s.bind(wi, warpgroups ? warpgroup : warp);
        s.stage(parts, a, Memory::Shared, ko);
        s.stage(parts, b, Memory::Shared, ko);
        Stage out = s.stage(parts, Memory::Shared, bj);
        if (boxes) s.via(out, Copy::Tma);
        s.mma(parts, warpgroups ? wgmma : mma_sync, {.m = rows, .n = nj, .k = ki});
        s.pipeline(ko, {.stages = 2});
        expect_sums(s, c, boxes, round);
        if (round % 3 == 0) expect_compiles(build(s));
    }
}

// Columns of integers, each part summed by a thread.
TEST_P(StagedUpdates, PartsOfColumns) {
    for (bool boxes : {false, true}) {
        int64_t rows = between(30, 90), columns = 4 * between(20, 60);
        Tensor x = input("x", i32, {rows, columns});
        Axis r = reduce_axis("r", rows);
        Tensor y = compute("y", {columns}, [&](Expr j) { return sum(x(r, j) * 3, r); });
        Schedule s({y}, device_target());
        Stage parts = s.rfactor(y, s.split(s.reduce(y), 16, Tail::Mask)[0], Combine::Atomic);
        auto [q, j] = s.loops<2>(parts);
        auto [jo, ji] = s.split(j, 64, Tail::Mask);
        s.order({q, jo, ji, s.reduce(parts)});
        s.bind(q, grid.y);
        s.bind(jo, grid.x);
        s.bind(ji, thread);
        Stage out = s.stage(parts, Memory::Shared, jo);
        if (boxes) s.via(out, Copy::Tma);
        expect_sums(s, y, boxes, 7);
    }
}

TEST_P(StagedUpdates, BoxesOnlyAddWhatTheyCan) {
    Tensor x = input("x", i32, {256, 64});
    Axis r = reduce_axis("r", 256);
    auto staged = [&](const Tensor& y) {
        Schedule s({y}, device_target());
        Stage parts = s.rfactor(y, s.split(s.reduce(y), 16)[0], Combine::Atomic);
        auto [q, j] = s.loops<2>(parts);
        s.order({q, j, s.reduce(parts)});
        s.bind(q, grid.x);
        s.bind(j, thread);
        s.via(s.stage(parts, Memory::Shared, q), Copy::Tma);
        return s;
    };
    Tensor largest = compute("largest", {64}, [&](Expr j) { return reduce_max(x(r, j), r); });
    EXPECT_ERROR(build(staged(largest)), "cannot be copied by the tensor memory accelerator: boxes only add");
    Tensor wide = compute("wide", {64}, [&](Expr j) { return sum(cast(i64, x(r, j)), r); });
    EXPECT_ERROR(build(staged(wide)), "boxes add numbers of 4 bytes, not i64");
}

}  // namespace
}  // namespace tw

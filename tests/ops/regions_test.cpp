// What stands under a loop: how much of it an iteration needs, and which threads make it.
#include <gmock/gmock.h>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class Regions : public RandomCases {
protected:
    Regions() : RandomCases(31) {}
};
TW_ON_EACH_DEVICE(Regions);

// Sums as long as the element's place says, or data up to a constant: a row's copy has the row's terms.
TEST_P(Regions, BoxesOfLengthsByPlace) {
    for (int round = 0; round < 12; ++round) {
        int64_t rows = between(3, 40), columns = between(2, 12), step = columns + between(0, 3), most = columns;
        Tensor x = input("x", f32, {rows * step}), length = input("length", i32, {rows});
        int form = round % 4;
        Tensor y = compute("y", {rows, columns}, [&](Expr t, Expr e) {
            Expr terms = form == 0   ? e + 1
                         : form == 1 ? columns - e
                         : form == 2 ? e / 2 * 2 + 1
                                     : min(cast(i64, length(t)), columns);
            if (form == 2) most = (columns - 1) / 2 * 2 + 1;
            Axis k = reduce_axis("k", terms);
            Expr place = chance() ? t * step + min(k, columns - 1) : t * step + k;
            return sum(x(place) * cast(f32, k + 1), k);
        });
        Schedule s({y}, device_target());
        auto [t, e] = s.loops<2>(y);
        Memory memory = chance() ? Memory::Registers : Memory::Shared;
        if (memory == Memory::Registers) {
            auto [block, inside] = s.split(t, 8, Tail::Mask);
            s.bind(block, grid.x);
            s.bind(inside, thread);
            s.stage(y, x, memory, inside);
        } else {
            s.bind(t, grid.x);
            s.bind(e, thread);
            s.stage(y, x, memory, t);
        }
        SCOPED_TRACE(s.to_string());
        EXPECT_THAT(s.to_string(), testing::HasSubstr(fmt::format(": f32 [{}] in ", most)));
        expect_declared(s, whole_numbers({y}, round));
    }
}

// Terms of a triangle's blocks: no box is larger than what the last row sums.
TEST_P(Regions, BoxesOfTriangles) {
    for (int64_t columns : {20, 32, 50}) {
        Tensor x = input("x", f32, {32, 64});
        Tensor y = compute("y", {32, columns}, [&](Expr i, Expr j) {
            Axis k = reduce_axis("k", i / 8 * 8 + 8);
            return sum(x(i, k) * x(i, k + j % 16), k);
        });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [bi, ii] = s.split(i, 8);
        s.order({bi, ii, j});
        s.bind(bi, grid.x);
        s.bind(j, thread);
        s.stage(y, x, Memory::Shared, bi);
        EXPECT_THAT(s.to_string(), testing::HasSubstr("f32 [8, 47] in shared"));
        expect_declared(s, whole_numbers({y}, 3));
    }
}

/// A product whose second factor is made in shared memory, by threads that read it through registers.
struct MadeFactor {
    int64_t m = 128, n = 64, k = 128;
    Tensor a, w, made, c;

    MadeFactor() {
        a = input("a", bf16, {m, k});
        w = input("w", bf16, {n, k});
        made = compute("made", {n, k}, [&](Expr j, Expr r) { return cast(bf16, cast(f32, w(j, r)) * 2.0); });
        Axis r = reduce_axis("r", k);
        c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, made(j, r)), r); });
    }
};

// Whichever way the loops around name the threads, a shared stage names its own, and so does what stands under these.
TEST_P(Regions, RegistersUnderAnotherStagesThreads) {
    for (int round = 0; round < 12; ++round) {
        MadeFactor p;
        MatrixUnit unit = round % 2 ? mma_sync : wgmma;
        Schedule s({p.c}, device_target());
        auto [i, j] = s.loops<2>(p.c);
        auto [wi, mi] = s.split(i, unit == wgmma ? 64 : 32);
        auto [ko, ki] = s.split(s.reduce(p.c), 32 << between(0, 2));
        s.order({wi, ko, mi, j, ki});
        s.bind(wi, unit == wgmma ? warpgroup : warp);
        s.at(p.made, ko);
        s.set_memory(p.made, Memory::Shared);
        s.stage(p.c, p.a, Memory::Shared, ko);
        auto [row, column] = s.loops<2>(p.made);
        auto [r1, r0] = s.split(row, 8 << between(0, 2));
        auto [c1, c0] = s.split(column, chance() ? 8 : 4);
        s.order({r1, r0, c1, c0});
        bool lanes = chance();
        s.bind(r0, lanes ? warp : thread);
        s.bind(c1, lanes ? lane : thread);
        if (chance()) s.bind(c0, tw::vector);
        Loop under = chance() ? c1 : r0;
        s.stage(p.made, p.w, Memory::Registers, under);
        s.mma(p.c, unit, {.m = mi, .n = j, .k = ki});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({p.c}, round));
    }
}

// A reduction behind what stands behind what it reads, too: which of its elements are there does not depend on the
// term.
TEST_P(Regions, ReductionsBehindFollowers) {
    Tensor x = input("x", i32, {13, 1}), flag = input("flag", i32, {1});
    Axis k = reduce_axis("k", 1);
    Tensor y = compute("y", {13, 1}, [&](Expr i, Expr j) { return x(i, j) * 3; });
    Tensor keep = compute("keep", {13, 1}, [&](Expr i, Expr j) { return y(i, j) + flag(j); });
    Tensor count = compute("count", {13}, [&](Expr i) { return sum(keep(i, k) * y(i, k), k); });
    Schedule s({y, keep, count}, device_target());
    auto [i, j] = s.loops<2>(y);
    s.at(keep, i);
    s.at(count, s.loops<2>(keep)[1]);
    s.split(s.loops<1>(count)[0], 2, Tail::Mask);
    s.order({j, i});
    s.fuse(j, i);
    SCOPED_TRACE(s.trace_as_cpp());
    expect_declared(s, whole_numbers({y, keep, count}, 3));
}

// A copy inside of a follower's sum, by parts that do not divide it: the last one leaves out what no term reads.
TEST_P(Regions, CopiesInsideOfFollowersSums) {
    Tensor x = input("x", f32, {100, 8});
    Tensor y = compute("y", {100, 8}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    Axis t = reduce_axis("t", 20);
    Tensor sums = compute("sums", {5, 8}, [&](Expr q, Expr j) { return sum(y(q * 20 + t, j), t); });
    Schedule s({y, sums}, device_target());
    auto [block, row] = s.split(s.loops<2>(y)[0], 20);
    s.at(sums, block);
    auto [part, term] = s.split(s.reduce(sums), 8, Tail::Mask);
    s.order({s.loops<2>(sums)[0], s.loops<2>(sums)[1], part, term});
    s.stage(sums, y, Memory::Registers, part);
    SCOPED_TRACE(s.trace_as_cpp());
    expect_declared(s, whole_numbers({y, sums}, 7));
    s.check_each_step(whole_numbers({y, sums}, 7));
}

// What stands behind an inner loop and is read behind an outer one lives between the two.
TEST_P(Regions, FollowersReadBehindOuterLoops) {
    for (Memory memory : {Memory::Auto, Memory::Registers})
        for (int threads : {8, 32}) {
            Tensor x = input("x", f32, {5, 3 * threads});
            Axis k = reduce_axis("k", 3 * threads);
            Tensor p = compute("p", {5, 3 * threads}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
            Tensor q = compute("q", {5, 3 * threads}, [&](Expr i, Expr j) { return p(i, j) * p(i, j); });
            Tensor y = compute("y", {5}, [&](Expr i) { return sum(q(i, k), k); });
            Schedule s({p, y}, device_target());
            auto [i, j] = s.loops<2>(p);
            s.bind(i, grid.x);
            auto [step, share] = s.split(j, threads);
            s.bind(share, thread);
            s.at(q, share);
            s.at(y, i);
            s.bind(s.split(s.reduce(y), threads)[1], thread);
            if (memory != Memory::Auto) s.set_memory(q, memory);
            SCOPED_TRACE(s.to_string());
            EXPECT_THAT(s.to_string(),
                        testing::HasSubstr(fmt::format("q: f32 [1, {}] in {}", 3 * threads,
                                                       memory == Memory::Auto ? "shared" : "registers")));
            expect_declared(s, whole_numbers({p, y}, static_cast<unsigned>(threads)), near(4));
        }
}

TEST(RegionErrors, ThreadsAreNamedOneWay) {
    MadeFactor p;
    Schedule s({p.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(p.c);
    auto [wi, mi] = s.split(i, 64);
    auto [ko, ki] = s.split(s.reduce(p.c), 64);
    s.order({wi, ko, mi, j, ki});
    s.bind(wi, warpgroup);
    s.at(p.made, ko);
    s.set_memory(p.made, Memory::Shared);
    auto [row, column] = s.loops<2>(p.made);
    s.bind(row, thread);
    Stage copy = s.stage(p.made, p.w, Memory::Registers, row);
    EXPECT_ERROR(s.bind(s.data_loops(copy).back(), lane), "has loops bound to thread and loops bound to warp or lane");
    EXPECT_ERROR(s.set_memory(p.made, Memory::Registers), "has loops bound to thread and loops bound to warp or lane");
}

// A sum by lanes inside of thread loops: each of their threads is a warp, also where other stages count them one by
// one.
TEST_P(Regions, LanesInsideOfThreadLoops) {
    for (int terms : {5, 13, 32})
        for (int part : {1, 2, 8}) {
            Tensor x = input("x", f32, {3, 24, terms}), bias = input("bias", f32, {24});
            Axis k = reduce_axis("k", terms);
            Tensor c = compute("c", {3, 24}, [&](Expr i, Expr j) { return sum(x(i, j, k), k); });
            Tensor y = compute("y", {3, 24}, [&](Expr i, Expr j) { return max(c(i, j) + bias(j), 0.0); });
            Schedule s({y}, device_target());
            auto [i, j] = s.loops<2>(y);
            auto [jo, ji] = s.split(j, part);
            s.bind(jo, thread);
            s.bind(ji, thread);
            s.at(c, jo);
            s.bind(s.reduce(c), lane);
            SCOPED_TRACE(s.trace_as_cpp());
            expect_declared(s, whole_numbers({y}, static_cast<unsigned>(terms + part)));
        }
}

}  // namespace
}  // namespace tw

// Every schedule step that is refused, with its reason and the line that asks.
#include <gtest/gtest.h>

#include "dsl/named_tensor.h"
#include "tests/dsl/small_schedules.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

TEST(ScheduleErrors, Construction) {
    Chain p;
    EXPECT_ERROR(Schedule({}, target("sm_90a")), "needs at least one output");
    EXPECT_ERROR(Schedule({Tensor()}, target("sm_90a")), "undefined tensor");
    EXPECT_ERROR(Schedule({p.x}, target("sm_90a")), "'x' is an input; an output must be computed");
    Tensor again = compute("y", {6, 9}, [&](Expr i, Expr j) { return p.y(i, j); });
    EXPECT_ERROR(Schedule({again}, target("sm_90a")), "two tensors are named 'y'");
}

TEST(ScheduleErrors, Handles) {
    MatrixProduct p;
    Chain other;
    auto [i, j] = p.s.loops<2>(p.c);
    EXPECT_ERROR(p.s.split(Loop{99}, 2), "belongs to no loop of the schedule");
    EXPECT_ERROR(p.s.split(Loop{1}, 2), "belongs to no loop of the schedule");
    EXPECT_ERROR(p.s.bind(Loop{}, thread), "bind: this loop handle belongs to no loop of the schedule");
    EXPECT_ERROR(p.s.at(Stage{}, i), "at: this stage handle belongs to no stage of the schedule");
    EXPECT_ERROR(p.s.at(Tensor{}, i), "at: this stage handle belongs to no stage of the schedule");
    p.s.split(i, 4);
    EXPECT_ERROR(p.s.split(i, 2), "split: loop 'i' is gone: step [0]");
    EXPECT_ERROR(p.s[p.a], "'a' is an input, no computation");
    EXPECT_ERROR(p.s[other.z], "'z' is not computed in this schedule (or was inlined); its outputs() are '");
    EXPECT_ERROR(p.s.all_loops(Stage{7}), "belongs to no stage");
    EXPECT_ERROR(p.s.loops<3>(p.c), "gone");
    EXPECT_ERROR(p.s.data_loops(p.c), "loops (data_loops): loop 'i' is gone");
    EXPECT_ERROR(other.s.loops<3>(other.z), "'z' has 2 data axes; write loops<2>");
    EXPECT_ERROR(p.s.reduce(p.c, 1), "'c' has 1 reduce axes; there is none with index 1");
    Axis k = reduce_axis("k", 8), l = reduce_axis("l", 8);
    Tensor x = input("x", f32, {8});
    Tensor y = compute("y", {}, [&] { return sum(x(k), k) / sum(x(l) * x(l), l); });
    EXPECT_ERROR(Schedule({y}, target("sm_90a")).reduce(y),
                 "'y' has 0 reduce axes; there is none with index 0. Of several reductions in one expression each is a "
                 "stage of its own: declare them as tensors of their own");
    EXPECT_ERROR(compute("y", {}, [&] { return sum(x(k), {k, k}); }), "axis 'k' is given twice; each axis is one loop");
    Loop inner = other.s.loops<2>(other.y)[0];
    other.s.inline_stage(other.y);
    EXPECT_ERROR(other.s.split(inner, 2), "belongs to 'y', which was inlined");
}

TEST(ScheduleErrors, HandlesOfAnotherSchedule) {
    MatrixProduct p, other;
    Loop i = other.s.loops<2>(other.c)[0], k = other.s.reduce(other.c);
    Stage c = other.s[other.c];
    const std::string before = p.s.to_string();
    EXPECT_ERROR(p.s.split(i, 2), "split: this handle is of the loop 'i' made at small_schedules.h:");
    EXPECT_ERROR(p.s.split(i, 2), "in another schedule (of 'c') or in another copy of this one. This one is of 'c'");
    EXPECT_ERROR(p.s.order({k, i}), "order: this handle is of the loop 'k'");
    EXPECT_ERROR(p.s.stage(p.c, p.a, Memory::Shared, k), "stage: this handle is of the loop 'k'");
    EXPECT_ERROR(p.s.set_memory(c, Memory::Global), "set_memory: this handle is of the stage 'c' made at");
    EXPECT_ERROR(p.s.all_loops(c), "all_loops: this handle is of the stage 'c'");
    EXPECT_ERROR(p.s.extent(i), "extent: this handle is of the loop 'i'");
    EXPECT_EQ(p.s.to_string(), before);
    EXPECT_TRUE(p.s.trace().empty());
}

TEST(ScheduleErrors, OneNameIsOneNumber) {
    Expr few = size("n", {.min = 1, .max = 20}), many = size("n", {.min = 30, .max = 50});
    Tensor x = input("x", f32, {few}), w = input("w", f32, {many});
    Tensor y = compute("y", {few}, [&](Expr i) { return x(i); }),
           z = compute("z", {many}, [&](Expr i) { return w(i); });
    EXPECT_ERROR(Schedule({y, z}, target("sm_90a")),
                 "Schedule: 'n' is a size from 1 to 20 in 'x', but a size from 30 to 50 in 'w'; a launch gives one");
    Tensor scaled = compute("scaled", {few}, [&](Expr i) { return x(i) * scalar("alpha", f32); });
    Tensor moved = compute("moved", {few}, [&](Expr i) { return cast(i32, scaled(i)) + scalar("alpha", i32); });
    EXPECT_ERROR(Schedule({moved}, target("sm_90a")),
                 "'alpha' is a scalar of type f32 in 'scaled', but a scalar of type i32 in 'moved'");
    Tensor both = compute("both", {few}, [&](Expr i) { return x(i) * scalar("n", f32); });
    EXPECT_ERROR(Schedule({both}, target("sm_90a")), "'n' is a size from 1 to 20 in 'x', but a scalar of type f32");
    Expr again = size("n", {.min = 1, .max = 20});  // the same declaration twice is one size
    Tensor other = compute("other", {again}, [&](Expr i) { return cast(f32, i); });
    EXPECT_NO_THROW(Schedule({y, other}, target("sm_90a")));
}

TEST(ScheduleErrors, MoreBlocksThanAGridHas) {
    auto bound = [](const Extent& extent, Level level) {
        Tensor x = input("x", f32, {1});
        Tensor y = compute("y", {extent}, [&](Expr) { return x(0); });
        Schedule s({y}, target("sm_90a"));
        s.bind(s.loops<1>(y)[0], level);
    };
    EXPECT_NO_THROW(bound(65535, Level::GridY));
    EXPECT_NO_THROW(bound(65536, Level::GridX));
    EXPECT_NO_THROW(bound(size("n", {.min = 1, .max = 1 << 20}), Level::GridZ));  // the launch sees how many
    EXPECT_ERROR(bound(65536, Level::GridY), "'y': what is bound to grid.y ('i') has 65536 iterations, 65535 at most");
    EXPECT_ERROR(bound(65536, Level::GridZ), "are possible; bind them to grid.x, which takes 2147483647");
    EXPECT_ERROR(bound(65536, Level::GridY), "schedule_errors_test.cpp:");
    EXPECT_ERROR(bound(size("n", {.min = 1 << 17, .max = 1 << 20}), Level::GridY), "has 131072 iterations");
    EXPECT_ERROR(bound(int64_t{1} << 31, Level::GridX), "leave the inner part of a split serial, or use persistent");
}

TEST(ScheduleErrors, NamesOfNoStageBlameTheLineThatAsks) {
    MatrixProduct p;
    EXPECT_ERROR(p.s.name(p.a), "schedule_errors_test.cpp:");
    EXPECT_ERROR(p.s.name(p.a), "'a' is an input, no computation");
    EXPECT_ERROR(p.s.reduces(p.a), "schedule_errors_test.cpp:");
    EXPECT_ERROR(p.s.readers(Stage{}), "schedule_errors_test.cpp:");
    EXPECT_ERROR(p.s.scatters(p.b), "schedule_errors_test.cpp:");
}

TEST(ScheduleErrors, Loops) {
    MatrixProduct p;
    Chain q;
    auto [i, j] = p.s.loops<2>(p.c);
    Loop k = p.s.reduce(p.c);
    EXPECT_ERROR(p.s.split(i, 0), "the size must be at least 1");
    EXPECT_ERROR(p.s.split(i, int64_t{1} << 40), "larger than any loop");
    EXPECT_ERROR(p.s.split(i, 5), "5 does not divide axis 'i' (12). Use a divisor, or split(i, 5, Tail::Mask)");
    EXPECT_ERROR(p.s.fuse(j, i), "'j' does not stand directly around 'i'");
    Tensor endless = compute("endless", {4}, [](Expr) {
        Axis r = reduce_axis("r", int64_t{1} << 40), t = reduce_axis("t", int64_t{1} << 40);
        return sum(cast(f32, r - t), {r, t});
    });
    Schedule long_sums({endless}, target("sm_90a"));
    EXPECT_ERROR(long_sums.fuse(long_sums.reduce(endless, 0), long_sums.reduce(endless, 1)),
                 "fuse(r, t): 1099511627776 times 1099511627776 iterations are more than 2^62");
    EXPECT_ERROR(p.s.fuse({}), "fuse: no loops; name at least one");
    EXPECT_ERROR(p.s.fuse({i, j, k}), "one is a data loop, the other a reduce loop");
    EXPECT_EQ(p.s.fuse({k}).id, k.id);
    EXPECT_ERROR(p.s.fuse(j, k), "one is a data loop, the other a reduce loop");
    EXPECT_ERROR(q.s.fuse(q.s.loops<2>(q.y)[0], q.s.loops<2>(q.z)[0]), "the loops belong to 'y' and 'z'");
    EXPECT_ERROR(q.s.order({q.s.loops<2>(q.y)[0], q.s.loops<2>(q.z)[0]}), "order the loops of one stage at a time");
    EXPECT_ERROR(p.s.order({}), "name at least one loop");
    EXPECT_ERROR(p.s.order({i, i}), "loop 'i' is named twice");
    q.s.at(q.y, q.s.loops<2>(q.z)[0]);
    EXPECT_ERROR(q.s.fuse(q.s.loops<2>(q.z)[0], q.s.loops<2>(q.z)[1]), "'y' stands under 'i', between them");
    p.s.bind(i, thread);
    EXPECT_ERROR(p.s.split(i, 4), "loop 'i' is bound to thread; split it before binding");
}

TEST(ScheduleErrors, OrderNeedsACommutativeReducer) {
    Tensor x = input("x", f32, {4, 6});
    Axis k = reduce_axis("k", 6);
    Reducer last = make_reducer(
        "last", {constant(f32, 0.0)}, [](auto&, auto& b) { return std::vector<Expr>{b[0]}; }, false);
    Tensor y = compute("y", {4}, [&](Expr i) { return reduce(last, {x(i, k)}, {k})[0]; });
    Schedule s({y}, target("sm_90a"));
    auto [ko, ki] = s.split(s.reduce(y), 2);
    EXPECT_ERROR(s.order({ki, ko}), "'last' of 'y' is not commutative");
    EXPECT_ERROR(s.bind(ki, thread),
                 "'last' of 'y' is not commutative: of its reduce loops only the outermost can be bound");
    s.bind(ko, thread);
    EXPECT_NE(s.explain().find("combine their parts of 'y' in pairs"), std::string::npos);
}

TEST(ScheduleErrors, PartsOfAReduction) {
    Chain p;
    EXPECT_ERROR(p.s.rfactor(p.z, p.s.loops<2>(p.z)[0]), "the loop is no reduce loop of 'z'");
    MatrixProduct q;
    Loop k = q.s.reduce(q.c);
    q.s.bind(k, thread);
    EXPECT_ERROR(q.s.rfactor(q.c, k), "the loop is bound to thread; bind(loop, serial) first");
    Tensor x = input("x", f32, {4, 6});
    Axis t = reduce_axis("t", 6);
    Reducer last = make_reducer(
        "last", {constant(f32, 0.0)}, [](auto&, auto& b) { return std::vector<Expr>{b[0]}; }, false);
    Tensor y = compute("y", {4}, [&](Expr i) { return reduce(last, {x(i, t)}, {t})[0]; });
    Tensor z = compute("z", {4}, [&](Expr i) { return y(i) + 1.0; });
    Schedule s({z}, target("sm_90a"));
    auto [to, ti] = s.split(s.reduce(y), 2);
    EXPECT_ERROR(s.rfactor(y, ti), "'last' is not commutative, and 't_inner' is not the outermost reduce loop");
    Schedule inside = s;
    inside.at(y, inside.loops<1>(z)[0]);
    EXPECT_ERROR(inside.rfactor(y, inside.reduce(y)), "'y' stands in another kernel");
    s.at(z, s.loops<1>(y)[0]);
    EXPECT_ERROR(s.rfactor(y, to), "'z' follows it under loop 'i'");
}

TEST(ScheduleErrors, Pipeline) {
    MatrixProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    Loop k = p.s.reduce(p.c);
    EXPECT_ERROR(p.s.pipeline(k, {.stages = 2}), "nothing in shared memory stands under the loop");
    p.s.stage(p.c, p.a, Memory::Shared, k);
    EXPECT_ERROR(p.s.pipeline(k, {.stages = 0}), "each copy can have 2 to 16 buffers");
    p.s.bind(i, grid.x);
    EXPECT_ERROR(p.s.pipeline(i, {.stages = 2}), "the loop is bound to grid.x; only iterations that follow each other");
    p.s.pipeline(k, {.stages = 2});
    EXPECT_NE(p.s.to_string().find("for k in 0..10  (2 stages)"), std::string::npos) << p.s.to_string();
    EXPECT_ERROR(p.s.split(k, 2), "loop 'k' is pipelined; split it before");
    EXPECT_ERROR(p.s.bind(k, thread), "the loop is pipelined: its iterations follow each other");
    EXPECT_EQ(replay(p.s.save(), {p.c}, target("sm_90a")).to_string(), p.s.to_string());
    p.s.pipeline(k, {.stages = 1});
    p.s.split(k, 2);
}

TEST(ScheduleErrors, RoundTo) {
    Weighted w;
    EXPECT_ERROR(w.s.round_to(w.y, bf16),
                 "it is an output of the schedule, whose type is declared; declare it as bf16");
    EXPECT_ERROR(w.s.round_to(w.p, i32), "name a float type, such as bf16");
    EXPECT_ERROR(w.s.round_to(w.p, f32), "its elements are f32, which f32 does not narrow");
    EXPECT_ERROR(replay("tilewright trace 1\nround_to 0 u8\n", {w.y}, target("sm_90a")), "\"u8\" is no float type");
    Schedule inlined = w.s;
    Stage p = inlined[w.p];
    inlined.inline_stage(w.p);
    EXPECT_ERROR(inlined.round_to(p, bf16), "it is inlined; its elements are in no memory");
    w.s.round_to(w.p, bf16);
    EXPECT_ERROR(w.s.inline_stage(w.p), "its elements are rounded to bf16, which only memory does");
}

TEST(ScheduleErrors, Levels) {
    MatrixProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    Loop k = p.s.reduce(p.c);
    EXPECT_ERROR(p.s.bind(k, grid.x),
                 "'k' runs along a reduction: its terms can be shared among threads, not among blocks");
    EXPECT_ERROR(p.s.bind(i, tw::vector), "a vector has 2, 4, 8 or 16 elements, the loop 12");
    EXPECT_ERROR(p.s.bind(j, tw::vector), "the vector loop 'j' of 'c' is not innermost");
    EXPECT_ERROR(p.s.bind(j, grid.x), "stands inside a loop that is not; order the grid loops outermost");
    p.s.bind(i, grid.x);
    EXPECT_ERROR(p.s.bind(i, thread), "already bound to grid.x");

    Expr n = size("n", {.min = 1, .max = 100});
    Tensor x = input("x", f32, {n, 600, 40});
    Tensor y = compute("y", {n, 600, 40}, [&](Expr a, Expr b, Expr c) { return x(a, b, c); });
    Tensor e = compute("e", {0}, [&](Expr) { return constant(f32, 1.0); });
    Schedule s({y, e}, target("sm_90a"));
    auto [a, b, c] = s.loops<3>(y);
    EXPECT_ERROR(s.bind(a, thread), "the extent n is not constant; split it and bind the inner loop");
    EXPECT_ERROR(s.bind(b, unrolled), "unrolling 600 iterations makes a huge kernel");
    EXPECT_ERROR(s.bind(c, lane), "its lane loops multiply to 40, a warp has 32 lanes");
    EXPECT_ERROR(s.bind(s.loops<1>(e)[0], thread), "the loop has no iterations");
    s.bind(b, thread);
    EXPECT_ERROR(s.bind(c, thread), "multiply to 24000 threads, a block of sm_90a has at most 1024");
    auto [co, ci] = s.split(c, 8);
    EXPECT_ERROR(s.bind(ci, lane), "use one of the two ways");
}

TEST(ScheduleErrors, Placement) {
    Chain q;
    auto [i, j] = q.s.loops<2>(q.z);
    EXPECT_ERROR(q.s.at(q.z, i), "the loop is the stage's own");
    Loop yi = q.s.loops<2>(q.y)[0];
    EXPECT_ERROR(q.s.inline_stage(q.z), "it is an output of the schedule");
    q.s.at(q.z, yi);
    EXPECT_ERROR(q.s.at(q.y, q.s.loops<2>(q.z)[0]), "stands inside 'y' itself");

    MatrixProduct p;
    EXPECT_ERROR(p.s.inline_stage(p.c), "it is a reduction");
    EXPECT_ERROR(p.s.stage(p.c, p.a, Memory::Shared), "needs the loop whose iteration it serves");
    Tensor other = input("other", f32, {3});
    EXPECT_ERROR(p.s.stage(p.c, other, Memory::Shared, p.s.reduce(p.c)), "'c' does not read 'other' inside loop 'k'");
    EXPECT_ERROR(p.s.stage(p.c, other, Memory::Global), "'c' does not read 'other'");

    Chain r;
    auto [ri, rj] = r.s.loops<2>(r.z);
    EXPECT_ERROR(r.s.bind(rj, grid.x), "order the grid loops outermost");
    r.s.at(r.y, ri);
    EXPECT_ERROR(r.s.stage(r.y, Memory::Shared, r.s.loops<2>(r.y)[0]),
                 "'y' is no output and lies in no memory between kernels; to choose where it lives");
    EXPECT_ERROR(r.s.bind(r.s.loops<2>(r.y)[0], grid.x), "'y' stands inside another kernel");
    EXPECT_ERROR(r.s.set_memory(r.y, Memory::Global), "'y' cannot live in global memory under loop 'i'");
    EXPECT_ERROR(r.s.set_memory(r.z, Memory::Shared), "'z' cannot live in shared: it is a kernel of its own");
}

TEST(ScheduleErrors, PlacementAndReaders) {
    Tensor x = input("x", f32, {8});
    Tensor y = compute("y", {8}, [&](Expr i) { return x(i) + 1.0; });
    Tensor z = compute("z", {8}, [&](Expr i) { return y(i) * 2.0; });
    Tensor w = compute("w", {8}, [&](Expr i) { return y(i) * 3.0; });
    Schedule s({z, w}, target("sm_90a"));
    EXPECT_ERROR(s.at(y, s.loops<1>(z)[0]), "but 'w' also reads it outside of that loop");
    Schedule t({y, z}, target("sm_90a"));
    EXPECT_ERROR(t.at(y, t.loops<1>(z)[0]), "'y' is an output of the schedule and cannot move under its reader");
    // A neighbour's element is not complete where one iteration made one element.
    Tensor v = compute("v", {8}, [&](Expr i) { return padded(y, 0)(i - 1); });
    Schedule u({v}, target("sm_90a"));
    EXPECT_ERROR(u.at(v, u.loops<1>(y)[0]), "one iteration makes only a part of it");
    // A loop with something under it keeps it.
    Schedule p({z}, target("sm_90a"));
    Loop yi = p.loops<1>(y)[0];
    p.stage(y, x, Memory::Registers, yi);
    EXPECT_ERROR(p.at(y, p.loops<1>(z)[0]), "'x_registers' stands under its loop 'i'");
    EXPECT_ERROR(p.inline_stage(y), "'x_registers' stands under its loop 'i'; move it first");
    Schedule vector_loop({z}, target("sm_90a"));
    Loop zi = vector_loop.loops<1>(z)[0];
    vector_loop.bind(zi, tw::vector);
    EXPECT_ERROR(vector_loop.at(y, zi), "cannot stand under the vector loop 'i'");
}

TEST(ScheduleErrors, Regions) {
    Tensor x = input("x", f32, {6, 9});
    Axis k = reduce_axis("k", 9);
    Tensor m = compute("m", {6}, [&](Expr i) { return sum(x(i, k), k); });
    Tensor y = compute("y", {6}, [&](Expr i) { return m(i) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    EXPECT_ERROR(s.at(y, s.reduce(m)), "complete only after its reduce loops");
    // Splitting below a stage whose loops were split changes its region.
    Schedule t({y}, target("sm_90a"));
    auto [io, ii] = t.split(t.loops<1>(y)[0], 3);
    t.at(m, io);
    t.split(t.loops<1>(m)[0], 3);
    EXPECT_ERROR(t.order({ii, io}), "whose loops were already split or bound");
    // The whole of a symbolic dimension is no box of constant extents.
    Expr n = size("n", {.min = 1, .max = 100});
    Axis r = reduce_axis("r", n);
    Tensor p = input("p", f32, {n, 4});
    Tensor q = compute("q", {n, 4}, [&](Expr i, Expr j) { return p(i, j) + 1.0; });
    Tensor total = compute("total", {4}, [&](Expr j) { return sum(q(r, j), r); });
    Schedule u({total}, target("sm_90a"));
    EXPECT_ERROR(u.at(q, u.loops<1>(total)[0]), "whose extent n is not constant");
}

TEST(ScheduleErrors, KernelsInACircle) {
    Tensor x = input("x", f32, {8});
    Tensor y = compute("y", {8}, [&](Expr i) { return x(i) + 1.0; });
    Axis k = reduce_axis("k", 8);
    Tensor total = compute("total", {1}, [&](Expr) { return sum(y(k), k); });
    Tensor z = compute("z", {8}, [&](Expr i) { return y(i) / total(0); });
    Schedule s({z}, target("sm_90a"));
    EXPECT_ERROR(s.at(z, s.loops<1>(y)[0]), "would need each other's results");
}

TEST(ScheduleErrors, StagedResult) {
    Tensor x = input("x", f32, {8});
    auto both = compute_tuple("both", {8}, [&](const std::vector<Expr>& i) {
        return std::vector<Expr>{x(i[0]) + 1.0, x(i[0]) + 2.0};
    });
    Schedule s(both, target("sm_90a"));
    EXPECT_ERROR(s.stage(both[0], Memory::Shared, s.loops<1>(both[0])[0]), "only a single result can be staged");
}

TEST(ScheduleErrors, InPlace) {
    Tensor x = input("x", f32, {8}), w = input("w", f32, {4});
    Tensor y = compute("y", {8}, [&](Expr i) { return x(i) + 1.0; });
    Tensor z = compute("z", {8}, [&](Expr i) { return y(i) + x(7 - i); });
    Schedule s({z}, target("sm_90a"));
    EXPECT_ERROR(s.in_place(y, x), "'y' is no output");
    EXPECT_ERROR(s.in_place(z, y), "'y' is no input");
    EXPECT_ERROR(s.in_place(z, w), "both must have one type, shape and dense rows");
    EXPECT_ERROR(s.in_place(z, input("v", f32, {8})), "nothing here reads 'v'; name an input of the schedule");
    EXPECT_ERROR(s.in_place(z, x), "reads 'x' elsewhere than at the element that it overwrites");
    Schedule t({y}, target("sm_90a"));
    t.in_place(y, x);
    ASSERT_EQ(t.tree().in_place.size(), 1u);
    EXPECT_ERROR(t.in_place(y, x), "'y' already overwrites 'x'");
}

TEST(ScheduleErrors, Replay) {
    Chain p;
    auto again = [&](const std::string& steps) {
        return replay("tilewright trace 1\n" + steps, {p.z}, target("sm_90a"));
    };
    EXPECT_ERROR(replay("nonsense", {p.z}, target("sm_90a")), "it is no saved trace");
    EXPECT_ERROR(replay("tilewright trace 2\nsplit 0 2 mask\n", {p.z}, target("sm_90a")),
                 "is a \"tilewright trace 2\", this library reads \"tilewright trace 1\"; replay it with the version");
    EXPECT_ERROR(again("twist 1 2\n"), "cannot read \"twist 1 2\"");
    EXPECT_ERROR(again("split x 2 mask\n"), "a number is missing");
    EXPECT_ERROR(again("bind 0 cloud\n"), "\"cloud\" is no level");
    EXPECT_ERROR(again("memory 0 drawer\n"), "\"drawer\" is no memory");
    EXPECT_ERROR(again("via 0 slowly\n"), "\"slowly\" is no way to copy");
    EXPECT_ERROR(again("mma 0 abacus 0 1 2\n"), "\"abacus\" is no matrix unit");
    EXPECT_ERROR(again("stage 0 t:q 0 shared 0\n"), "the computation has no tensor 'q'");
    EXPECT_ERROR(again("stage 0 t:x 3 shared 0\n"), "'x' has 1 outputs, not an output 3");
    EXPECT_ERROR(again("split 0 5 divide\n"), "line 2: split 0 5 divide");
    EXPECT_ERROR(
        again("split 70 5 divide\n"),
        "Steps are of the tensors that their schedule has, some of which a rule may have declared anew: give its "
        "outputs(), replay(s.save(), s.outputs(), s.target())");
    EXPECT_ERROR(named_tensor({p.z}, "w"), "named_tensor(w): no tensor is called so; take one of x, ");
    EXPECT_TRUE(named_tensor({p.z}, "z").same(p.z));
}

}  // namespace
}  // namespace tw

// Schedule steps: what they make of the tree.
#include "dsl/schedule.h"

#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "dsl/replay_changed.h"

#include "tests/dsl/small_schedules.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

TEST(Schedule, AccumulatorTileFollowsTheOrderOfLoops) {
    MatrixProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    p.s.order({p.s.reduce(p.c), i, j});
    EXPECT_NE(p.s.to_string().find("c_sum: f32 [12, 8] in registers"), std::string::npos) << p.s.to_string();
}

TEST(Schedule, StagedCopyIsTheTileOfTheOperand) {
    MatrixProduct p;
    auto [io, ii] = p.s.split(p.s.loops<2>(p.c)[0], 4);
    Stage copy = p.s.stage(p.c, p.a, Memory::Shared, io);
    EXPECT_EQ(p.s.name(copy), "a_shared");
    EXPECT_NE(p.s.to_string().find("a_shared: f32 [4, 10] in shared"), std::string::npos) << p.s.to_string();
}

TEST(Schedule, SharedCopyCoversTheThreadsAround) {
    MatrixProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    auto [ko, ki] = p.s.split(p.s.reduce(p.c), 5);
    p.s.bind(i, thread);
    p.s.stage(p.c, p.a, Memory::Shared, ko);
    p.s.stage(p.c, p.b, Memory::Registers, ko);
    EXPECT_NE(p.s.to_string().find("a_shared: f32 [12, 5]"), std::string::npos) << p.s.to_string();
    EXPECT_NE(p.s.to_string().find("b_registers: f32 [5, 1]"), std::string::npos) << p.s.to_string();
}

TEST(Schedule, FailedStepLeavesEverything) {
    MatrixProduct p;
    std::string before = p.s.to_string();
    EXPECT_ANY_THROW(p.s.split(p.s.loops<2>(p.c)[0], 5));
    EXPECT_EQ(p.s.to_string(), before);
    EXPECT_TRUE(p.s.trace().empty());
}

TEST(Schedule, TraceReplays) {
    MatrixProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    auto [io, ii] = p.s.split(i, 5, Tail::Mask);
    auto [ko, ki] = p.s.split(p.s.reduce(p.c), 5);
    p.s.order({io, ko, ii, j, ki});
    p.s.bind(io, grid.x);
    p.s.bind(ii, thread);
    p.s.stage(p.c, p.b, Memory::Shared, ko);
    p.s.stage(p.c, Memory::Shared, io);
    Schedule again = replay(p.s.save(), {p.c}, target("sm_90a"));
    EXPECT_EQ(again.to_string(), p.s.to_string());
    EXPECT_EQ(again.save(), p.s.save());
    EXPECT_NE(p.s.trace_as_cpp().find("auto [i_outer, i_inner] = s.split(i, 5, Tail::Mask);"), std::string::npos)
        << p.s.trace_as_cpp();
    EXPECT_NE(p.s.trace_as_cpp().find("schedule_test.cpp:"), std::string::npos);
}

TEST(Schedule, ExplainsReorderedReductions) {
    MatrixProduct p;
    auto [ko, ki] = p.s.split(p.s.reduce(p.c), 5);
    p.s.order({ki, ko});
    EXPECT_NE(p.s.explain().find("combined in another order"), std::string::npos);
    EXPECT_NE(p.s.explain().find("'c' lives in global memory (default)"), std::string::npos) << p.s.explain();
}

TEST(Schedule, NamesTheCorrespondingLoop) {
    Chain p;
    auto [i, j] = p.s.loops<2>(p.z);
    auto [jo, ji] = p.s.split(j, 3);
    p.s.at(p.y, jo);
    EXPECT_EQ(p.s.loop(p.y, ji).id, p.s.loops<2>(p.y)[1].id);
    EXPECT_ERROR(p.s.loop(p.y, p.s.loops<2>(p.y)[0]), "no loop of 'y' corresponds");
}

TEST(Schedule, CopiesHaveTheLoopsOfWhatTheyCopied) {
    MatrixProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    auto [io, ii] = p.s.split(i, 2);
    Schedule copy = p.s;
    auto [jo, ji] = copy.split(j, 4);
    copy.order({jo, io, ji, ii});  // some made before, some behind
    EXPECT_ERROR(p.s.bind(jo, thread), "this handle is of the loop 'j_outer'");
    auto [po, pi] = p.s.split(j, 4);  // the same numbers, and loops of its own
    EXPECT_EQ(po.id, jo.id);
    EXPECT_ERROR(p.s.bind(jo, thread), "this handle is of the loop 'j_outer'");
    EXPECT_ERROR(copy.bind(po, thread), "this handle is of the loop 'j_outer'");
    p.s.bind(po, thread);
    p.s = copy;
    p.s.bind(jo, thread);
    EXPECT_ERROR(p.s.bind(pi, thread), "this handle is of the loop 'j_inner'");
}

TEST(Schedule, PartsOfAReduction) {
    Tensor x = input("x", f32, {30, 7});
    Axis k = reduce_axis("k", 30);
    Tensor y = compute("y", {7}, [&](Expr j) { return sum(x(k, j), k) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    auto [ko, ki] = s.split(s.reduce(y), 8, Tail::Mask);
    Stage parts = s.rfactor(y, ko);
    EXPECT_EQ(s.name(parts), "y_partial");
    ASSERT_EQ(s.tree().workspaces.size(), 1u);
    EXPECT_EQ(to_string(s.tree().workspaces[0]->shape[0]), "4");
    s.split(ki, 3, Tail::Mask);  // the parts' loop now
    Bindings bindings;
    HostArray& data = bindings.inputs["x"] = host_array(f32, {30, 7});
    fill_integers(data, -9, 9, 5);  // any order gives the same sum
    EXPECT_EQ(interpret_tree(s.tree(), bindings)[0].bytes, interpret_plain({y}, bindings)[0].bytes);
    Schedule again = replay(s.save(), {y}, target("sm_90a"));
    EXPECT_EQ(again.to_string(), s.to_string());
}

// Of an element that a stage behind a staged result's copy reads, only one index tells the tile's element.
TEST(Schedule, FollowersOfFollowersReadPartsOfTheElement) {
    Tensor x = input("x", i32, {37, 1});
    Tensor y = compute("y", {37, 1}, [&](Expr i, Expr j) { return x(i, j) * 3; });
    Axis k = reduce_axis("k", 1);
    Tensor total = compute("total", {37}, [&](Expr i) { return sum(y(i, k) + cast(i32, k), k); });
    Schedule s({y, total}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    Stage out = s.stage(y, Memory::Registers, j);
    auto [jo, ji] = s.split(s.loops<2>(out)[1], 3, Tail::Mask);
    s.at(total, ji);
    Bindings bindings;
    fill_integers(bindings.inputs["x"] = host_array(i32, {37, 1}), -9, 9, 5);
    std::vector<HostArray> expected = interpret_plain({y, total}, bindings), got = interpret_tree(s.tree(), bindings);
    for (size_t k = 0; k < 2; ++k) EXPECT_FALSE(difference("result", got[k], expected[k], bitwise));
}

// A follower that another kernel reads, too, may be kept for those that follow with it.
TEST(Schedule, FollowersAreKeptForOthersAndStored) {
    Tensor x = input("x", i32, {6, 5});
    Axis k = reduce_axis("k", 5);
    Tensor y = compute("y", {6, 5}, [&](Expr i, Expr j) { return x(i, j) * 3; });
    Tensor top = compute("top", {6}, [&](Expr i) { return reduce_max(y(i, k), k); });
    Tensor below = compute("below", {6, 5}, [&](Expr i, Expr j) { return top(i) - y(i, j); });
    Tensor last = compute("last", {6}, [&](Expr i) { return top(5 - i) + 1; });
    Schedule s({y, below, last}, target("sm_90a"));
    Loop row = s.loops<2>(y)[0];
    s.at(top, row);
    s.at(below, row);
    s.stage(top, Memory::Registers, row);
    EXPECT_THAT(s.to_string(), testing::HasSubstr("top: i32 [1] in registers"));
    Bindings bindings;
    fill_integers(bindings.inputs["x"] = host_array(i32, {6, 5}), -9, 9, 5);
    std::vector<HostArray> expected = interpret_plain({y, below, last}, bindings),
                           got = interpret_tree(s.tree(), bindings);
    for (size_t n = 0; n < 3; ++n) EXPECT_FALSE(difference("result", got[n], expected[n], bitwise));
}

// What follows a stage without elements is made all the same.
TEST(Schedule, FollowersOfEmptyStages) {
    Tensor x = input("x", i32, {16, 0});
    Axis k = reduce_axis("k", 0);
    Tensor y = compute("y", {16, 0}, [&](Expr i, Expr j) { return x(i, j) * 3; });
    Tensor keep = compute("keep", {16, 0}, [&](Expr i, Expr j) { return y(i, j) * 2; });
    Tensor total = compute("total", {16}, [&](Expr i) { return sum(keep(i, k) + y(i, k), k); });
    Schedule s({keep, total}, target("sm_90a"));
    s.at(keep, s.loops<2>(y)[0]);
    auto [io, ii] = s.split(s.all_loops(keep)[0], 16, Tail::Mask);
    s.at(total, io);
    Bindings bindings;
    bindings.inputs["x"] = host_array(i32, {16, 0});
    EXPECT_EQ(interpret_tree(s.tree(), bindings)[1].bytes, interpret_plain({keep, total}, bindings)[1].bytes);
}

/// Sums of blocks of four rows behind a tile that has all rows, and more.
TEST(Schedule, FollowersOfASingleIterationMakeWhatThereIs) {
    Tensor x = input("x", i32, {6, 3});
    Axis k = reduce_axis("k", 6);
    Tensor y = compute("y", {6, 3}, [&](Expr i, Expr j) { return x(i, j) * 3; });
    Tensor total = compute("total", {3}, [&](Expr j) { return sum(y(k, j), k); });
    for (int tile : {4, 8}) {
        Schedule s({y, total}, target("sm_90a"));
        const Stage parts = s.rfactor(total, s.split(s.reduce(total), 4, Tail::Mask)[0]);
        s.at(parts, s.split(s.loops<2>(y)[0], tile, Tail::Mask)[0]);
        EXPECT_TRUE(is_constant(s.extent(s.data_loops(parts)[0]), tile / 4)) << s.to_string();
        Bindings bindings;
        fill_integers(bindings.inputs["x"] = host_array(i32, {6, 3}), -9, 9, 5);
        EXPECT_FALSE(difference("total", interpret_tree(s.tree(), bindings)[1],
                                interpret_plain({y, total}, bindings)[1], bitwise));
    }
}

TEST(Schedule, TilesThatNobodyReachesTakeNoMemory) {
    Tensor x = input("x", f32, {0, 1, 1, 3});
    Axis k = reduce_axis("k", 3);
    Tensor y = compute("y", {0, 1, 1}, [&](Expr i, Expr j, Expr p) { return sum(x(i, j, p, k), k); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j, p] = s.loops<3>(y);
    auto [jo, ji] = s.split(j, int64_t{1} << 30, Tail::Mask);
    auto [po, pi] = s.split(p, int64_t{1} << 30, Tail::Mask);
    s.order({i, s.reduce(y), jo, ji, po, pi});
    Bindings bindings;
    bindings.inputs["x"] = host_array(f32, {0, 1, 1, 3});
    EXPECT_EQ(interpret_tree(s.tree(), bindings)[0].num_elements(), 0);
}

TEST(Schedule, RoundedStagesAreWhatIsDeclaredWithRoundings) {
    for (Type type : {tf32, f16, bf16, e4m3, e5m2})
        for (Memory memory : {Memory::Global, Memory::Shared, Memory::Registers}) {
            Weighted w;
            if (memory != Memory::Global) {
                w.s.at(w.p, w.s.loops<2>(w.y)[0]);
                w.s.set_memory(w.p, memory);
            }
            w.s.round_to(w.p, type);
            Tensor p = compute("p", {7, 20}, [&](Expr i, Expr j) { return round_to(type, exp(w.x(i, j))); });
            Tensor y = compute("y", {7, 5}, [&](Expr i, Expr e) { return sum(p(i, w.k) * w.v(w.k, e), w.k); });
            Bindings data;
            data.inputs = {{"x", host_array(f32, {7, 20})}, {"v", host_array(f32, {20, 5})}};
            fill_uniform(data.inputs["x"], -2, 2, 1);
            fill_uniform(data.inputs["v"], -1, 1, 2);
            HostArray got = interpret_tree(w.s.tree(), data)[0];
            auto unscheduled = [&](const Tensor& t) {
                return interpret_tree(Schedule({t}, target("sm_90a")).tree(), data)[0];
            };
            EXPECT_FALSE(difference("y", got, unscheduled(y))) << w.s.to_string();
            EXPECT_TRUE(difference("y", got, unscheduled(w.y))) << "nothing was rounded";
            EXPECT_EQ(replay(w.s.save(), {w.y}, target("sm_90a")).to_string(), w.s.to_string());
            EXPECT_EQ(w.s.roundings(), std::vector<Type>{type});
            EXPECT_NE(w.s.explain().find("'p' is rounded to " + std::string(name_of(type))), std::string::npos);
        }
}

TEST(Schedule, CopiesOfRoundedStagesHoldTheSame) {
    for (bool before : {true, false}) {
        Weighted w;
        auto [i, e] = w.s.loops<2>(w.y);
        if (before) w.s.round_to(w.p, bf16);
        Stage copy = w.s.stage(w.y, w.p, Memory::Shared, i), whole = w.s.stage(copy, w.p, Memory::Global);
        if (!before) w.s.round_to(w.p, bf16);
        std::string tree = w.s.to_string();
        EXPECT_EQ(w.s.roundings(), std::vector<Type>{bf16}) << tree;
        EXPECT_EQ(tree.find("p_shared: f32"), std::string::npos) << tree;
        for (const BufferRef& workspace : w.s.tree().workspaces) EXPECT_EQ(workspace->type, bf16) << workspace->name;
    }
}

TEST(Schedule, InPlaceOfOneOutputOfSeveral) {
    Tensor p = input("p", f32, {4, 5}), m = input("m", f32, {4, 5}), g = input("g", f32, {4, 5});
    auto step = compute_tuple("step", {4, 5}, [&](const std::vector<Expr>& i) {
        Expr momentum = 0.5 * m.read({i[0], i[1]}) + g.read({i[0], i[1]});
        return std::vector<Expr>{p.read({i[0], i[1]}) - momentum, momentum};
    });
    Schedule s(step, target("sm_90a"));
    s.in_place(step[1], m);
    s.in_place(step[0], p);
    EXPECT_ERROR(s.in_place(step[1], g), "'step' already overwrites 'm'");
    const Tree& tree = s.tree();
    ASSERT_EQ(tree.in_place.size(), 2u);
    EXPECT_EQ(tree.in_place[0].first, tree.outputs[1]);
    EXPECT_EQ(tree.in_place[0].second->name, "m");
    EXPECT_EQ(tree.in_place[1].first, tree.outputs[0]);
    EXPECT_EQ(tree.in_place[1].second->name, "p");
    EXPECT_EQ(replay(s.save(), step, target("sm_90a")).save(), s.save());

    Bindings given;
    for (const char* name : {"p", "m", "g"}) {
        given.inputs[name] = host_array(f32, {4, 5});
        fill_uniform(given.inputs[name], -1, 1, name[0]);
    }
    auto got = interpret_tree(tree, given), expected = interpret_plain(step, given);
    for (size_t k = 0; k < 2; ++k) EXPECT_EQ(difference("step", got[k], expected[k], equal_values), std::nullopt);

    Schedule first({step[0]}, target("sm_90a"));
    EXPECT_ERROR(first.in_place(step[1], m), "'step' is no output of the schedule");
}

// Traces that were saved before steps had today's names.
TEST(Schedule, ReplaysOldWords) {
    Axis r = reduce_axis("r", 64);
    Tensor x = input("x", f32, {8, 64});
    Tensor y = compute("y", {8}, [&](Expr i) { return sum(x(i, r), r); });
    auto same = [&](const std::string& old_words, const std::string& new_words) {
        const std::string head = "tilewright trace 1\n";
        return replay(head + old_words, {y}, target("sm_90a")).save() ==
               replay(head + new_words, {y}, target("sm_90a")).save();
    };
    EXPECT_TRUE(same("split 1 8 divide\npartial 0 2\n", "split 1 8 divide\nrfactor 0 2\n"));
    EXPECT_TRUE(same("totals 0\n", "accumulators 0\n"));
    EXPECT_TRUE(same("persistent_growing 4 0\n", "persistent_longest_first 4 0\n"));
    Schedule saved({y}, target("sm_90a"));
    saved.accumulators(y);
    EXPECT_EQ(saved.save().find("totals"), std::string::npos);
}

/// Numbers of loops and stages in steps are those of the trace, whatever changed steps make.
TEST(Schedule, TakesTheStepsOfATraceWithChanges) {
    MatrixProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    auto [io, ii] = p.s.split(i, 4);
    auto [jo, ji] = p.s.split(j, 4);
    p.s.order({io, jo, ii, ji});
    p.s.stage(p.c, p.a, Memory::Shared, jo);
    p.s.bind({io, jo}, grid.x);
    p.s.bind(ji, thread);
    const ChangeableTrace trace(p.s);
    EXPECT_EQ(trace.with({}).save(), p.s.save());
    EXPECT_EQ(trace.loops_named_by(2), (std::vector<int>{io.id, jo.id, ii.id, ji.id}));
    EXPECT_EQ(trace.loops_before(1), static_cast<size_t>(ii.id) + 1);

    // Without the first split there is no loop that the order, the bindings and the copy's place name after it.
    const std::string without = trace.with({{.step = 0, .is_left_out = true}}).to_string();
    EXPECT_NE(without.find("for i in 0..12\n"), std::string::npos) << without;
    EXPECT_NE(without.find("a_shared: f32 [1, 10] in shared"), std::string::npos) << without;
    // A loop that is split in front of a step is one of both parts behind it.
    StepChange results{.step = 5};
    results.split = {ji.id, 2, true};
    const Schedule shared = trace.with({results});
    EXPECT_NE(shared.save().find("split 6 2 mask"), std::string::npos) << shared.save();
    EXPECT_NE(shared.to_string().find("for j_inner_outer in 0..2  (thread)"), std::string::npos) << shared.to_string();

    const std::string wide = trace.with({{.step = 1, .instead = "split 1 8 divide"}}).to_string();
    EXPECT_NE(wide.find("for j_inner in 0..8  (thread)"), std::string::npos) << wide;
    EXPECT_ERROR(trace.with({{.step = 1, .instead = "split 1 5 divide"}}), "5 does not divide axis 'j' (8)");
}

}  // namespace
}  // namespace tw

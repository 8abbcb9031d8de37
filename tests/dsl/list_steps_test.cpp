// Steps on several loops or stages at once: what each alone would give, one step of the trace.
#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "tests/schedules/integers_for.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

/// A product, what is made of it, and a product with that.
struct Small {
    Tensor q = input("q", bf16, {64, 32}), k = input("k", bf16, {96, 32}), v = input("v", bf16, {96, 32}), scores,
           weights, o;

    Small() {
        Axis t = reduce_axis("t", 32), u = reduce_axis("u", 96);
        scores = compute("scores", {64, 96},
                         [&](Expr i, Expr j) { return sum(cast(f32, q(i, t)) * cast(f32, k(j, t)), t); });
        weights = compute("weights", {64, 96}, [&](Expr i, Expr j) { return min(relu(scores(i, j)), 3.0); });
        o = compute("o", {64, 32}, [&](Expr i, Expr j) { return sum(weights(i, u) * cast(f32, v(u, j)), u); });
    }

    Schedule by_lists() const {
        Schedule s({o}, target("sm_90a"));
        auto [i, j] = s.loops<2>(o);
        auto [block, slice, row] = s.split(i, {32, 16}, Tail::Divide, {"block", "slice", "row"});
        auto [step, term] = s.split(s.reduce(o), 32);
        s.order({block, slice, step, row, j, term});
        s.bind(block, grid.x);
        s.bind(std::vector<Loop>{slice}, warp);
        s.at({weights, scores}, step, Memory::Registers);
        s.stage({{o, weights}}, Memory::Registers, step, bf16);
        auto [keys, values] = s.stage({{scores, k}, {o, v}}, Memory::Shared, step);
        s.stage(scores, q, Memory::Shared, block);
        s.mma({o, scores}, mma_sync);
        s.pipeline(step, {.stages = 2});
        s.via(values, Copy::Async);
        s.via(keys, Copy::Async);
        return s;
    }

    Schedule one_by_one() const {
        Schedule s({o}, target("sm_90a"));
        auto [i, j] = s.loops<2>(o);
        auto [block, in_block] = s.split(i, 32, {"block", ""});
        auto [slice, row] = s.split(in_block, 16, {"slice", "row"});
        auto [step, term] = s.split(s.reduce(o), 32);
        s.order({block, slice, step, row, j, term});
        s.bind(block, grid.x);
        s.bind(slice, warp);
        for (const Tensor& made : {weights, scores}) s.at(made, step), s.set_memory(made, Memory::Registers);
        s.round_to(s.stage(o, weights, Memory::Registers, step), bf16);
        Stage keys = s.stage(scores, k, Memory::Shared, step), values = s.stage(o, v, Memory::Shared, step);
        s.stage(scores, q, Memory::Shared, block);
        s.mma(o, mma_sync, {.m = row, .n = j, .k = term});
        auto [a, b] = s.loops<2>(scores);
        auto [around, t] = s.split(s.reduce(scores), 32, {"", "t"});  // all sums of a tile are kept
        s.order({around, a, b, t});
        s.mma(scores, mma_sync, {.m = a, .n = b, .k = t});
        s.pipeline(step, {.stages = 2});
        s.via(values, Copy::Async);
        s.via(keys, Copy::Async);
        return s;
    }
};

TEST(ListSteps, AreThoseOfEachAlone) {
    const Small chain;
    const Schedule lists = chain.by_lists(), single = chain.one_by_one();
    EXPECT_EQ(lists.to_string(), single.to_string());
    EXPECT_EQ(lists.trace().size(), single.trace().size() - 9);
    const Schedule again = replay(lists.save(), {chain.o}, target("sm_90a"));
    EXPECT_EQ(again.to_string(), lists.to_string());
    EXPECT_EQ(again.save(), lists.save());
    lists.check_each_step(integers_for({chain.o}, 2));
    for (const char* step :
         {"auto [block, slice, row] = s.split(i, {32, 16}, Tail::Divide, {\"block\", \"slice\", \"row\"});",
          "s.bind({slice}, warp);", "s.at({weights, scores}, u_outer, Memory::Registers);",
          "auto [weights_registers] = s.stage({{o, weights}}, Memory::Registers, u_outer, bf16);",
          "auto [k_shared, v_shared] = s.stage({{scores, k}, {o, v}}, Memory::Shared, u_outer);",
          "s.mma({o, scores}, mma_sync);"})
        EXPECT_THAT(lists.trace_as_cpp(), HasSubstr(step));
}

/// Sums that share one pass over their terms, in a tile that is larger than the tensors: the terms of what shares the
/// loop stay as they are, and its rows are those of the tile, whatever is copied.
TEST(ListSteps, MultiplyInAStreamOfOneTile) {
    const Tensor w = input("w", bf16, {96, 41}), f = input("f", bf16, {96, 32}), g = input("g", bf16, {96, 16});
    auto sums = [&](const char* name, const Tensor& of, int64_t width) {
        const Axis t = reduce_axis("t", 96);
        return compute(name, {41, width},
                       [&](Expr i, Expr x) { return sum(cast(f32, w(t, i)) * cast(f32, of(t, x)), t); });
    };
    const Tensor a = sums("a", f, 32), b = sums("b", g, 16);
    auto schedule = [&](bool by_list) {
        Schedule s({a, b}, target("sm_90a"));
        auto [i, x] = s.loops<2>(a);
        auto [block, group, row] = s.split(i, {64, 64}, Tail::Mask);
        auto [step, term] = s.split(s.reduce(a), 48);
        s.order({block, group, step, row, x, term});
        s.bind(block, grid.x);
        s.bind(group, warpgroup);
        s.stream({b, a}, step);
        auto [j, y] = s.loops<2>(b);
        const Loop u = s.all_loops(b).back();
        if (by_list) {
            s.mma({a, b}, wgmma);
        } else {
            s.mma(a, wgmma, {.m = row, .n = x, .k = term});
            s.mma(b, wgmma, {.m = j, .n = y, .k = u});
        }
        s.stage({{{a, b}, w}, {a, f}, {b, g}}, Memory::Shared, step);
        return s;
    };
    const Schedule by_list = schedule(true);
    EXPECT_EQ(by_list.to_string(), schedule(false).to_string());
    EXPECT_EQ(replay(by_list.save(), {a, b}, target("sm_90a")).to_string(), by_list.to_string());
    by_list.check_each_step(integers_for({a, b}, 2));
}

/// Elementwise, without units: loops of three dimensions as one, threads of two.
TEST(ListSteps, FuseAndBindLoops) {
    Tensor x = input("x", f32, {3, 5, 7, 8});
    Tensor y = compute("y", {3, 5, 7, 8}, [&](Expr a, Expr b, Expr c, Expr d) { return x(a, b, c, d) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    auto [a, b, c, d] = s.loops<4>(y);
    const Loop rows = s.fuse({a, b, c}, "rows");
    auto [block, row, rest] = s.split(rows, {16, 4}, Tail::Mask);
    s.bind(block, grid.x);
    s.bind({row, rest, d}, thread);
    EXPECT_EQ(s.trace().size(), 4U);
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("Loop rows = s.fuse({i, j, p}, \"rows\");"));
    EXPECT_THAT(s.to_string(), HasSubstr("rows_outer"));
    EXPECT_EQ(replay(s.save(), {y}, target("sm_90a")).to_string(), s.to_string());
    s.check_each_step(integers_for({y}, 2));
}

/// All or none: what fails in the middle leaves the schedule as it was.
TEST(ListSteps, FailTogether) {
    const Small chain;
    Schedule s({chain.o}, target("sm_90a"));
    auto [i, j] = s.loops<2>(chain.o);
    const std::string before = s.to_string();
    auto fails = [&](const std::function<void()>& step, const char* text) {
        EXPECT_ERROR(step(), text);
        EXPECT_EQ(s.to_string(), before);
        EXPECT_TRUE(s.trace().empty());
    };
    fails([&] { s.split(i, {32, 5}, Tail::Divide); }, "5 does not divide axis 'i_inner' (32)");
    fails(
        [&] {
            s.split(i, {32, 16}, Tail::Mask, {"a", "b"});
        },
        "split: 2 names for 3 loops; name each of them, or none");
    fails([&] { s.fuse({i, j, s.reduce(chain.o)}, "all"); }, "one is a data loop, the other a reduce loop");
    fails([&] { s.fuse({i, j, j}, "all"); }, "fuse: loop 'j' is named twice");
    fails([&] { s.bind({i, s.reduce(chain.o)}, grid.x); }, "rfactor");
    fails([&] { s.at({chain.weights, chain.o}, i); }, "the loop is the stage's own");
    fails([&] { s.stage({{chain.o, chain.v}, {chain.scores, chain.v}}, Memory::Shared, j); }, "does not read 'v'");
    fails([&] { s.mma({chain.weights, chain.o}, mma_sync); }, "mma: a stage has 2 loops; it takes three, m, n and k");
    for (auto empty : std::vector<std::function<void()>>{[&] { s.bind(std::vector<Loop>{}, thread); },
                                                         [&] { s.at(std::vector<StageRef>{}, i); },
                                                         [&] { s.mma(std::vector<StageRef>{}, wgmma); }})
        fails(empty, "name at least one");
    fails([&] { s.split(i, std::vector<int64_t>{}, Tail::Mask, {}); }, "split: no sizes; name at least one");
    fails([&] { s.stage(std::span<const CopyOf>(), Memory::Shared, i, {}); }, "stage: no copies; name at least one");
}

}  // namespace
}  // namespace tw

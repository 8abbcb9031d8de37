// Pipelined loops inside of pipelined loops: whoever copies asks for boxes in the order in which they are awaited.
// Random shapes and depths, whole numbers, bit for bit.
#include <fmt/format.h>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class NestedPipelines : public RandomCases {
protected:
    NestedPipelines() : RandomCases(37) {}
};
TW_ON_EACH_DEVICE(NestedPipelines);

struct Options {
    int64_t rows = 128, columns = 64, outer = 4, inner = 1, block_k = 32;
    int outer_stages = 2, inner_stages = 3, in_flight = 0;
    bool run_on = false;  ///< from the inner loop's last iterations into the outer loop's next one
    int warpgroups = 2, turns = 1, persistent_blocks = 0;
    int load_roles = 1;         ///< 0: the role that computes copies, 2: one for each loop
    bool made_inside = true;    ///< what is multiplied is made of the outer loop's copy in each inner iteration
    bool made_outside = false;  ///< or in each outer one
    bool uneven = false;        ///< a tile's rows decide how many outer iterations there are
    int64_t cut = 0;            ///< the outer loop, behind so many iterations; 0: whole
};

/// c = a (2 w)': tiles of w come with the outer loop, those of a with the inner one.
struct Product {
    Tensor a, w, twice, c;

    explicit Product(const Options& o)
        : a(input("a", bf16, {o.rows, o.outer * o.inner * o.block_k})),
          w(input("w", bf16, {o.columns, o.outer * o.inner * o.block_k})) {
        twice = compute("twice", {o.columns, o.outer * o.inner * o.block_k},
                        [&](Expr n, Expr k) { return cast(bf16, cast(f32, w(n, k)) * 2.0); });
        const Tensor& factor = o.made_inside || o.made_outside ? twice : w;
        c = compute("c", {o.rows, o.columns}, [&](Expr i, Expr j) {
            Expr length = o.uneven ? min(i / 64 % 3, o.outer) : Expr(o.outer);
            Axis q = reduce_axis("q", length), r = reduce_axis("r", o.inner * o.block_k);
            Expr k = q * (o.inner * o.block_k) + r;
            return sum(cast(f32, a(i, k)) * cast(f32, factor(j, k)), {q, r});
        });
    }
};

Schedule scheduled(const Product& p, const Options& o, const Target& target) {
    Schedule s({p.c}, target);
    auto [i, j] = s.loops<2>(p.c);
    auto [bi, it] = s.split(i, 64 * o.warpgroups);
    auto [wi, mi] = s.split(it, 64);
    Loop q = s.reduce(p.c, 0);
    auto [ko, ki] = s.split(s.reduce(p.c, 1), o.block_k);
    s.order({bi, wi, q, ko, mi, j, ki});
    if (o.persistent_blocks)
        s.persistent({bi}, {.blocks = o.persistent_blocks});
    else
        s.bind(bi, grid.x);
    s.bind(wi, warpgroup);
    const bool makes = o.made_inside || o.made_outside;
    if (makes) {
        s.at(p.twice, o.made_inside ? ko : q);
        s.set_memory(p.twice, Memory::Shared);
    }
    Stage as = s.stage(p.c, p.a, Memory::Shared, ko), ws = s.stage(makes ? p.twice : p.c, p.w, Memory::Shared, q);
    s.mma(p.c, wgmma, {.m = mi, .n = j, .k = ki});
    s.pipeline(ko, {.stages = o.inner_stages, .in_flight = o.in_flight});
    s.pipeline(q, {.stages = o.outer_stages, .in_flight = o.run_on ? 1 : 0});
    if (o.cut > 0) s.cut(q, {o.cut});
    Role math{"math", warpgroups(o.warpgroups * o.turns), {}, {p.c}, ping_pong(o.turns)};
    if (o.load_roles == 1) s.roles({{"load", warps(1), {}, {as, ws}}, math});
    if (o.load_roles == 2) s.roles({{"load_a", warps(1), {}, {as}}, {"load_w", warps(1), {}, {ws}}, math});
    if (o.load_roles == 0) {
        s.via(as, Copy::Tma);
        s.via(ws, Copy::Tma);
    }
    return s;
}

TEST_P(NestedPipelines, OfManyShapes) {
    for (int round = 0; round < 12; ++round) {
        Options o{.outer = between(1, 9), .inner = between(1, 4), .block_k = 32 << between(0, 1)};
        o.columns = 16 * between(1, 4);
        o.outer_stages = between(2, 4);
        o.inner_stages = between(2, 4);
        o.made_inside = chance();
        o.warpgroups = between(1, 2);
        o.rows = 64 * o.warpgroups * between(1, 3);
        o.persistent_blocks = chance() ? between(1, 3) : 0;
        o.load_roles = between(0, 5) > 0 ? between(1, 2) : 0;
        o.uneven = o.warpgroups == 1 && chance();
        if (o.persistent_blocks && o.load_roles && !o.uneven && !o.made_inside && chance()) o.turns = 2;
        if (o.turns > 1) o.warpgroups = 1;
        if (o.load_roles && !o.made_inside) o.in_flight = between(0, o.inner_stages - 1);
        Product p(o);
        Schedule s = scheduled(p, o, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), {p.c}, device_target()).to_string(), s.to_string());
        expect_declared(s, whole_numbers({p.c}, round));
        if (round % 6 == 0) expect_compiles(build(s));
    }
}

// Nobody waits for all products before the outer loop has ended, not where their factor is made, either.
TEST_P(NestedPipelines, RunOnIntoTheNextIteration) {
    for (int round = 0; round < 10; ++round) {
        Options o{.outer = between(1, 7), .inner = between(1, 4), .block_k = 32 << between(0, 1)};
        o.columns = 16 * between(1, 2);
        o.outer_stages = between(2, 4);
        o.inner_stages = between(2, 4);
        o.in_flight = between(1, std::min(static_cast<int>(o.inner), o.inner_stages - 1));
        o.run_on = true;
        o.made_inside = false;
        o.warpgroups = between(1, 2);
        o.rows = 64 * o.warpgroups * between(1, 3);
        o.persistent_blocks = chance() ? between(1, 3) : 0;
        o.load_roles = between(1, 2);
        o.uneven = o.warpgroups == 1 && o.rows > 64 && chance();
        o.made_outside = round % 2 > 0;
        if (o.persistent_blocks && !o.uneven && chance()) o.turns = 2, o.warpgroups = 1;
        Product p(o);
        Schedule s = scheduled(p, o, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), {p.c}, device_target()).to_string(), s.to_string());
        expect_declared(s, whole_numbers({p.c}, round));
        if (round % 6 == 0) expect_compiles(build(s));
        const std::string cuda = build(s).cuda(), all = "wgmma_wait<0>();";
        const size_t wait = cuda.find("tw::" + all);
        ASSERT_NE(wait, std::string::npos) << cuda;
        EXPECT_EQ(cuda.find("tw::" + all, wait + 1), std::string::npos) << cuda;
        EXPECT_LT(cuda.rfind(fmt::format("tw::wgmma_wait<{}>();", o.in_flight)), wait) << cuda;
    }
}

// The same of one loop; a factor is made of a copy, or straight of what lies in global memory.
TEST_P(NestedPipelines, OfOneLoopMakeFactorsAhead) {
    for (int in_flight : {0, 1, 2})
        for (int warpgroups : {1, 2, -1, -2}) {
            const bool copied = warpgroups > 0;
            warpgroups = std::abs(warpgroups);
            Options o{.rows = 64 * warpgroups, .columns = 32, .outer = 7, .inner = 1, .block_k = 64};
            o.made_inside = false;
            o.made_outside = true;
            Product p(o);
            Schedule s({p.c}, device_target());
            auto [i, j] = s.loops<2>(p.c);
            auto [wi, mi] = s.split(i, 64);
            Loop ko = s.reduce(p.c, 0), ki = s.reduce(p.c, 1);
            s.order({wi, ko, mi, j, ki});
            s.bind(wi, warpgroup);
            s.at(p.twice, ko);
            s.set_memory(p.twice, Memory::Shared);
            std::vector<StageRef> loaded{s.stage(p.c, p.a, Memory::Shared, ko)};
            if (copied) loaded.push_back(s.stage(p.twice, p.w, Memory::Shared, ko));
            s.mma(p.c, wgmma, {.m = mi, .n = j, .k = ki});
            s.pipeline(ko, {.stages = 4, .in_flight = in_flight});
            s.roles({{"load", warps(1), {}, loaded}, {"math", tw::warpgroups(warpgroups), {}, {p.c}}});
            SCOPED_TRACE(s.trace_as_cpp());
            expect_declared(s, whole_numbers({p.c}, in_flight + warpgroups));
        }
}

// Warpgroups, of which one is late, make a factor together that products of the last but one iteration have read.
TEST_P(NestedPipelines, MakeAgainWhatAllHaveRead) {
    for (int blocks : {0, 1})
        for (int inner : {1, 2}) {
            Options o{.rows = 256, .columns = 32, .outer = 6, .inner = inner, .in_flight = 1, .run_on = true};
            o.persistent_blocks = blocks;
            o.made_inside = false;
            o.made_outside = true;
            Product p(o);
            Schedule s = scheduled(p, o, device_target());
            SCOPED_TRACE(s.trace_as_cpp());
            expect_declared(s, whole_numbers({p.c}, blocks + inner));
        }
}

TEST(NestedPipelineErrors, OfProductsThatRunOn) {
    auto built = [](const Options& o) { build(scheduled(Product(o), o, target("sm_90a"))); };
    EXPECT_ERROR(built({.inner = 1, .in_flight = 2, .run_on = true, .made_inside = false}),
                 "it may have fewer iterations than are in flight");
    EXPECT_ERROR(built({.inner = 2, .in_flight = 0, .run_on = true, .made_inside = false}),
                 "the loop does not end with wgmma alone");
    EXPECT_ERROR(built({.inner = 2, .in_flight = 1, .run_on = true, .made_inside = true}),
                 "'twice' is made in each of its iterations, while its products run on");
    Options o{.inner = 2, .outer_stages = 3, .in_flight = 1, .made_inside = false};
    Product p(o);
    Schedule s = scheduled(p, o, target("sm_90a"));
    s.pipeline(s.reduce(p.c, 0), {.stages = 3, .in_flight = 2});
    EXPECT_ERROR(build(s), "run on into the next iteration, and no further");
}

/// Copies of a segment would run into those of the next one.
TEST(NestedPipelineErrors, OfOuterLoopsThatAreCut) {
    const Options o{.inner = 2, .in_flight = 1, .warpgroups = 1, .made_inside = false, .cut = 1};
    EXPECT_ERROR(build(scheduled(Product(o), o, target("sm_90a"))), "it stands in a loop that is cut, or unrolled");
}

/// How many outer iterations another group's tile has, one group does not count.
TEST(NestedPipelineErrors, OfUnevenLengthsInTurn) {
    for (const bool run_on : {false, true}) {
        const Options o{.rows = 256,
                        .in_flight = 1,
                        .run_on = run_on,
                        .warpgroups = 1,
                        .turns = 2,
                        .persistent_blocks = 1,
                        .made_inside = false,
                        .uneven = true};
        EXPECT_ERROR(build(scheduled(Product(o), o, target("sm_90a"))),
                     "its loop has not always as many iterations in loops around it, and groups that take turns");
    }
}

// As many iterations as the simulation of signals sees, and more.
TEST_P(NestedPipelines, AreLongerThanTheirStages) {
    for (int64_t inner : {1, 2, 4})
        for (int64_t outer : {2, 4, 12, 64})
            for (int blocks : {0, 1}) {
                Options o{.outer = outer, .inner = inner, .block_k = 64, .persistent_blocks = blocks};
                EXPECT_NO_THROW(build(scheduled(Product(o), o, device_target()))) << outer << " x " << inner;
            }
}

// One role asks for all boxes, of the outer loop's stage before those that are read with it.
TEST(NestedPipelineText, FollowsTheOrderOfReaders) {
    Options o{.inner = 2};
    std::string cuda = build(scheduled(Product(o), o, target("sm_90a"))).cuda();
    size_t outer = cuda.find("for (int q = 0"), first = cuda.find("tma_load(&shared.w_shared", outer),
           inner = cuda.find("for (int r_outer = 0", first), second = cuda.find("tma_load(&shared.a_shared", inner);
    EXPECT_NE(second, std::string::npos) << cuda;
    EXPECT_EQ(cuda.substr(outer, second - outer).find("mbarrier_arrive"), std::string::npos) << cuda;
}

}  // namespace
}  // namespace tw

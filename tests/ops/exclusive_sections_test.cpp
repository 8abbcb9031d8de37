// Exclusive sections: warpgroups take turns at stages of an iteration, and results are the same to the bit.
#include <gmock/gmock.h>

#include "schedules/attention.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class ExclusiveSections : public RandomCases {
protected:
    ExclusiveSections() : RandomCases(41) {}
};
TW_ON_EACH_DEVICE(ExclusiveSections);

size_t count(const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
}
size_t turns_in(const Schedule& s) {
    const std::string text = build(s).cuda();
    return count(text.substr(text.find("extern")), "tw::barrier_arrive(");
}

/// c = a b' by warpgroups of 64 rows, whose copies come by a role of their own or by their own threads.
struct Product {
    struct Options {
        int64_t m = 256, n = 64, k = 128;
        int warpgroups = 2, stages = 2, in_flight = 0, persistent_blocks = 0, turns = 1;
        bool roles = true, registers = false;
    };
    Tensor a, b, c;
    Schedule s;
    Stage a_shared;

    static Tensor product(const Tensor& a, const Tensor& b, const Options& o) {
        Axis r = reduce_axis("r", o.k);
        return compute("c", {o.m, o.n},
                       [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
    }

    Product(const Options& o, const Target& target)
        : a(input("a", bf16, {o.m, o.k})), b(input("b", bf16, {o.n, o.k})), c(product(a, b, o)), s({c}, target) {
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, int64_t{64} * o.warpgroups, Tail::Mask);
        auto [bj, nj] = s.split(j, 32, Tail::Mask);
        auto [wi, mi] = s.split(it, 64);
        auto [ko, ki] = s.split(s.reduce(c), 32, Tail::Mask);
        s.order({bi, bj, wi, ko, mi, nj, ki});
        if (o.persistent_blocks) {
            s.persistent({bi, bj}, {.blocks = o.persistent_blocks});
        } else {
            s.bind(bi, grid.y);
            s.bind(bj, grid.x);
        }
        s.bind(wi, warpgroup);
        Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, ko);
        a_shared = as;
        s.mma(c, wgmma, {.m = mi, .n = nj, .k = ki});
        if (!o.roles) return;
        s.pipeline(ko, {.stages = o.stages, .in_flight = o.in_flight});
        s.roles(
            {{"load", warps(1), registers(o.registers ? 40 : 0), {as, bs}},
             {"math", warpgroups(o.warpgroups * o.turns), registers(o.registers ? 152 : 0), {c}, ping_pong(o.turns)}});
    }
};

TEST_P(ExclusiveSections, OfProducts) {
    for (int round = 0; round < 8; ++round) {
        Product::Options o{.m = 8 * between(1, 50), .n = 8 * between(1, 12), .k = 8 * between(5, 40)};
        o.warpgroups = between(2, 3);
        o.stages = between(2, 4);
        o.in_flight = between(0, o.stages - 1);
        o.roles = round % 4 != 3;
        o.registers = chance();
        o.persistent_blocks = o.roles && chance() ? between(1, 5) : 0;
        Product p(o, device_target());
        p.s.exclusive({p.c});
        SCOPED_TRACE(p.s.trace_as_cpp());
        EXPECT_GE(turns_in(p.s), 2U);
        EXPECT_EQ(replay(p.s.save(), {p.c}, device_target()).to_string(), p.s.to_string());
        EXPECT_THAT(p.s.to_string(), testing::HasSubstr("exclusive: c"));
        expect_declared(p.s, whole_numbers({p.c}, round));
    }
}

/// Two products of a step, with what they need in between or delayed, in loops that are cut and skip; of the step's
/// exponentials; and of both, one behind the other.
TEST_P(ExclusiveSections, OfAttention) {
    using namespace schedules;  // NOLINT: attention
    for (const char* name :
         {"attention_bf16_1x2x384x32_causal_tile192x64s2lh2e", "attention_bf16_1x2x300x16_keys500_tile128x64s2pqre",
          "attention_bf16_1x2x500x16_causal_tile128x32s2pdqrh2e", "attention_bf16_1x2x256x16_keys300_tile128x64s2ne",
          "attention_bf16_1x1x256x16_keys64_tile128x64s2e"}) {
        SCOPED_TRACE(name);
        const NamedAttention named = *parse_attention(name);
        EXPECT_TRUE(named.tiles->exclusive);
        const Schedule s = attention_schedule(named.shape, *named.tiles, device_target());
        AttentionTiles plain = *named.tiles;
        plain.exclusive = false;
        EXPECT_EQ(turns_in(attention_schedule(named.shape, plain, device_target())), 0U);
        EXPECT_GE(turns_in(s), 2U);
        expect_declared(s, random_bindings(s.outputs(), 3), near(64, 2e-2));
    }
    const AttentionShape shape{.batch = 1, .heads = 1, .rows = 256, .keys = 192, .depth = 16, .width = 16};
    for (bool beside : {false, true}) {
        const Attention a = declare_attention(shape);
        Schedule s = attention_schedule(a, shape, {.rows = 128, .keys = 64, .exclusive = beside}, device_target());
        s.exclusive({a.p});
        EXPECT_GE(turns_in(s), beside ? 4U : 2U);
        expect_declared(s, random_bindings(s.outputs(), 5), near(64, 2e-2));
    }
}

/// y[i] = sum_k t[k] x[i], where t is made for each k; `length`: how many terms an element has.
struct Sums {
    Tensor x = input("x", f32, {256}), z = input("z", f32, {256}), t, y;
    Schedule s;

    static Tensor sums(const Tensor& t, const Tensor& x, const std::function<Expr(Expr)>& length) {
        return compute("y", {256}, [&](Expr i) {
            Axis r = reduce_axis("r", length(i));
            return sum(t(r) * x(i), r);
        });
    }

    explicit Sums(const Target& target, const std::function<Expr(Expr)>& length, Memory memory = Memory::Registers)
        : t(compute("t", {256}, [&](Expr k) { return z(k) + 1.0; })), y(sums(t, x, length)), s({y}, target) {
        s.bind(s.loops<1>(y)[0], thread);
        s.at(t, s.reduce(y));
        s.set_memory(t, memory);
    }
};

TEST_P(ExclusiveSections, OfThreads) {
    Sums sums(device_target(), [](const Expr&) { return Expr(int64_t{24}); });
    sums.s.exclusive({sums.t, sums.y});
    EXPECT_EQ(turns_in(sums.s), 2U);
    expect_declared(sums.s, whole_numbers({sums.y}, 1));
}

TEST(ExclusiveSectionErrors, OfSteps) {
    Product p({}, target("sm_90a"));
    EXPECT_ERROR(p.s.exclusive({}), "exclusive: name the stages at which warpgroups take turns");
    EXPECT_ERROR(p.s.exclusive({p.c, p.c}), "exclusive: 'c' is named twice");
    Tensor x = input("x", f32, {8}), first = compute("first", {8}, [&](Expr i) { return x(i) + 1.0; }),
           second = compute("second", {8}, [&](Expr i) { return first(i) * 2.0; });
    Schedule s({second}, target("sm_90a"));
    EXPECT_ERROR(s.exclusive({first, second}), "exclusive: 'second' stands in another kernel than 'first'");
    s.exclusive({first});
    EXPECT_ERROR(s.inline_stage(first), "exclusive: 'first' is inlined, so that nobody can take turns at it");
}

TEST(ExclusiveSectionErrors, OfKernels) {
    auto product = [](const Product::Options& o, int times = 1) {
        Product p(o, target("sm_90a"));
        for (int n = 0; n < times; ++n) p.s.exclusive({p.c});
        build(p.s);
    };
    EXPECT_ERROR(product({.warpgroups = 1}), "two or more, but 128 threads compute; bind loops to more of them");
    EXPECT_ERROR(product({.warpgroups = 3}, 5), "5 sections of 3 warpgroups take 15 named barriers, 14 are left");
    EXPECT_NO_THROW(product({.warpgroups = 2}, 7));
    EXPECT_ERROR(product({.warpgroups = 1, .persistent_blocks = 2, .turns = 2}),
                 "'math' plays ping-pong, and its groups take turns at whole tiles");
    Product copied({}, target("sm_90a"));
    copied.s.exclusive({copied.c, copied.a_shared});
    EXPECT_ERROR(build(copied.s), "do not compute all, so there is nothing to take turns at");
    Sums uneven(target("sm_90a"), [](const Expr& i) { return i / 128 * 8 + 8; });
    uneven.s.exclusive({uneven.t, uneven.y});
    EXPECT_ERROR(build(uneven.s), "each another number of times, and would wait for the others for ever");
    Sums shared(
        target("sm_90a"), [](const Expr&) { return Expr(int64_t{24}); }, Memory::Shared);
    shared.s.exclusive({shared.t, shared.y});
    EXPECT_ERROR(build(shared.s), "all threads meet at a barrier inside of an exclusive section");
    Sums within(
        target("sm_90a"), [](const Expr&) { return Expr(int64_t{24}); }, Memory::Shared);
    within.s.exclusive({within.t, within.y});
    within.s.exclusive({within.t});
    EXPECT_ERROR(build(within.s), "all threads meet at a barrier inside of an exclusive section");
    Sums behind(target("sm_90a"), [](const Expr&) { return Expr(int64_t{24}); });
    const Tensor w = compute("w", {256}, [&](Expr i) { return behind.y(i) * 2.0; });
    Schedule both({w}, target("sm_90a"));
    Loop i = both.loops<1>(w)[0];
    both.bind(i, thread);
    both.at(behind.y, i);
    both.at(behind.t, both.reduce(behind.y));
    both.exclusive({behind.t, behind.y});
    both.exclusive({behind.y, w});
    EXPECT_ERROR(build(both), "a section holds loop 'r', in which warpgroups take turns at another one");
    Sums apart(target("sm_90a"), [](const Expr&) { return Expr(int64_t{24}); });
    apart.s.exclusive({apart.t});
    EXPECT_NO_THROW(build(apart.s));
    Sums moved(target("sm_90a"), [](const Expr&) { return Expr(int64_t{24}); });
    moved.s.exclusive({moved.t, moved.y});
    EXPECT_ERROR(moved.s.rfactor(moved.y, moved.s.reduce(moved.y)), "now; name stages of one");
}

/// Turns at all of a pipelined loop: refused by the step that makes them so, whichever it is.
TEST(ExclusiveSectionErrors, OfPipelinedLoops) {
    const schedules::AttentionShape shape{.batch = 1, .heads = 1, .rows = 256, .keys = 192, .depth = 16, .width = 16};
    const schedules::Attention a = schedules::declare_attention(shape);
    Schedule s = schedules::attention_schedule(a, shape, {.rows = 128, .keys = 64}, target("sm_90a"));
    const std::string before = s.to_string();
    EXPECT_ERROR(s.exclusive({a.o, a.lse}), "exclusive: turns at ");
    EXPECT_ERROR(s.exclusive({a.o, a.lse}), "last for all iterations of the pipelined loop 'step'");
    EXPECT_ERROR(s.exclusive({a.o, a.lse}), "name what stands in one iteration of it, exclusive({o}), alone");
    EXPECT_EQ(s.to_string(), before);
    s.exclusive({a.o});

    const Tensor x = input("x", f32, {24, 256}), z = input("z", f32, {256});
    const Axis r = reduce_axis("r", 24);
    const Tensor t = compute("t", {256}, [&](Expr i) { return z(i) + 1.0; }),
                 y = compute("y", {256}, [&](Expr i) { return sum(x(r, i) * t(i), r); }),
                 w = compute("w", {256}, [&](Expr i) { return y(i) * t(i); });
    auto scheduled = [&] {
        Schedule made({w}, target("sm_90a"));
        const Loop i = made.loops<1>(w)[0];
        made.bind(i, thread);
        made.at(y, i);
        made.at(t, i);
        made.stage(y, x, Memory::Shared, made.reduce(y));
        return made;
    };
    Schedule around = scheduled();
    around.pipeline(around.reduce(y), {.stages = 2});
    EXPECT_ERROR(around.exclusive({t, w}), "turns at 't' and 'w' last for all iterations of the pipelined loop 'r'");
    EXPECT_ERROR(around.exclusive({t, w}), "name stages of one iteration of it, or leave out those on one side of it");
    EXPECT_NO_THROW(around.exclusive({t}));
    Schedule later = scheduled();
    later.exclusive({t, w});
    EXPECT_ERROR(later.pipeline(later.reduce(y), {.stages = 2}), "exclusive_sections_test.cpp:");
}

}  // namespace
}  // namespace tw

// Kernels with roles whose signals are altered: the simulation before printing tells, also at the sizes that are used.
#include "codegen/simulate_signals.h"

#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "codegen/thread_walk.h"
#include "dsl/schedule.h"

namespace tw::codegen {
namespace {

constexpr size_t everything = 1 << 20;

struct Options {
    int64_t m = 256, n = 192, k = 512;
    int stages = 3, in_flight = 1, turns = 1, cluster = 1, blocks = 2;
};

/// c = a b', boxes by a role of their own.
ThreadKernel product(const Options& o) {
    Tensor a = input("a", bf16, {o.m, o.k}), b = input("b", bf16, {o.n, o.k});
    Axis r = reduce_axis("r", o.k);
    Tensor c =
        compute("c", {o.m, o.n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, mi] = s.split(i, 64, Tail::Mask);
    auto [bo, rank] = s.split(bi, o.cluster, Tail::Mask);
    auto [bj, nj] = s.split(j, 64, Tail::Mask);
    auto [wi, rows] = s.split(mi, 64);
    auto [ko, ki] = s.split(s.reduce(c), 64, Tail::Mask);
    s.order({bo, bj, rank, wi, ko, rows, nj, ki});
    s.persistent({bo, bj}, {.blocks = o.blocks});
    s.bind(rank, cluster);
    s.bind(wi, warpgroup);
    Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, ko);
    s.mma(c, wgmma, {.m = rows, .n = nj, .k = ki});
    s.pipeline(ko, {.stages = o.stages, .in_flight = o.in_flight});
    s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(o.turns), {}, {c}, turns(o.turns)}});
    ThreadKernel found;
    LowerOptions options;
    options.printed = [&](const ThreadKernel& kernel) { found = kernel; };
    lower(s.tree(), target("sm_90a"), options);
    return found;
}

std::string first_problem(const ThreadKernel& kernel) {
    for (const SignalSpeeds& speeds : {SignalSpeeds{}, SignalSpeeds{0, 0, 0}, SignalSpeeds{50000, 50, 20000}})
        if (std::string problem = simulate_signals(kernel, everything, speeds).problem; !problem.empty())
            return problem;
    return {};
}

/// The kernel with each call of the primitive changed by the rule; an undefined statement leaves it out.
ThreadKernel altered(ThreadKernel kernel, const std::string& primitive,
                     const std::function<ThreadStmt(const ThreadCall&)>& rule) {
    kernel.body = transform(kernel.body, [&](const ThreadStmt& stmt) {
        const ThreadCall* call = stmt.as<ThreadCall>();
        if (!call || call->primitive != primitive) return ThreadStmt();
        ThreadStmt other = rule(*call);
        return other.defined() ? other : make_thread(ThreadBlock{});
    });
    return kernel;
}

TEST(SimulateSignals, FindsNothingWhereNothingIsWrong) {
    for (const Options& o :
         {Options{}, Options{.stages = 2, .in_flight = 0}, Options{.k = 64, .stages = 4},
          Options{.m = 500, .turns = 2, .blocks = 3}, Options{.m = 512, .cluster = 2, .blocks = 4},
          Options{.m = 512, .turns = 2, .cluster = 4, .blocks = 4}, Options{.k = 8192, .stages = 8}}) {
        SignalSimulation result = simulate_signals(product(o), everything);
        EXPECT_TRUE(result.simulated && result.whole);
        EXPECT_EQ(first_problem(product(o)), "");
        EXPECT_EQ(result.lanes.size(), static_cast<size_t>(1 + o.turns));
        for (const SignalLane& lane : result.lanes)
            for (const SignalSpan& span : lane.spans) EXPECT_LE(span.to, result.cycles + 1000) << lane.name;
    }
}

TEST(SimulateSignals, TellsWhatIsWrong) {
    ThreadKernel kernel = product({});
    auto left_out = [](const ThreadCall&) { return ThreadStmt(); };
    auto with = [](size_t argument, const std::function<Expr(const Expr&)>& other) {
        return [=](const ThreadCall& call) {
            ThreadCall changed = call;
            changed.arguments.at(argument).value = other(changed.arguments[argument].value);
            return make_thread(changed);
        };
    };
    auto problem = [&](const std::string& primitive, const std::function<ThreadStmt(const ThreadCall&)>& rule) {
        return first_problem(altered(kernel, primitive, rule));
    };
    auto tells = [](const std::string& text, const std::string& part) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " is not in '" << text << "'";
    };
    tells(problem("barrier_arrive", left_out), "for ever");
    tells(problem("barrier_expect", left_out), "for ever");
    tells(problem("barrier_wait", left_out), "more arrive at ro_full[0]");
    tells(problem("barrier_wait", with(1, [](const Expr& phase) { return 1 - phase; })), "which has not arrived");
    tells(problem("barrier_init", with(1, [](const Expr& count) { return count + 1; })), "for ever");
    tells(problem("barrier_expect", with(1, [](const Expr& bytes) { return bytes - 16; })), "for ever");
    tells(problem("wgmma_wait",
                  [](const ThreadCall& call) {
                      ThreadCall changed = call;
                      changed.parameters[0] = 2;
                      return make_thread(changed);
                  }),
          "which is still read");
    tells(problem("tma_load_2d",
                  [](const ThreadCall& call) {
                      return make_thread(ThreadBlock{{make_thread(ThreadCall(call)), make_thread(ThreadCall(call))}});
                  }),
          "which has not arrived");
}

// Phases that count wrongly once the ring has turned, which small kernels do not show.
TEST(SimulateSignals, CountsPhasesOfLongSums) {
    ThreadKernel kernel = product({.k = 64 * 37, .stages = 3});
    EXPECT_EQ(first_problem(kernel), "");
    ThreadKernel wrong = altered(kernel, "barrier_wait", [](const ThreadCall& call) {
        ThreadCall changed = call;
        Expr& phase = changed.arguments[1].value;
        phase = select(changed.arguments[0].place.indices[0] == 2, 1 - phase, phase);
        return make_thread(changed);
    });
    EXPECT_NE(first_problem(wrong), "");
}

// What depends on data is left to the emulator.
TEST(SimulateSignals, LeavesDataAlone) {
    ThreadKernel kernel = product({});
    auto x = std::make_shared<const BufferNode>(
        BufferNode{.name = "x", .type = Type::I32, .memory = Memory::Global, .shape = {}, .strides = {}});
    kernel.body = make_thread(ThreadIf{make_expr(Type::I32, Load{x, {}}) > 0, kernel.body});
    EXPECT_FALSE(simulate_signals(kernel, everything).simulated);
    EXPECT_NO_THROW(verify_signals(kernel));
}

}  // namespace
}  // namespace tw::codegen

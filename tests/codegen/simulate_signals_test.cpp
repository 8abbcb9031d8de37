// Kernels with roles whose signals are altered: the simulation before printing tells, also at the sizes that are used.
#include "codegen/signals/simulate_signals.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "codegen/signals/signal_events.h"
#include "codegen/thread_ir/thread_walk.h"
#include "dsl/schedule.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr size_t everything = 1 << 20;

struct Options {
    int64_t m = 256, n = 192, k = 512;
    int stages = 3, in_flight = 1, turns = 1, cluster = 1, blocks = 2;
    bool longest_first = false;  ///< see PersistentOptions
    bool triangular = false;     ///< row i sums up to the end of its tile only
    bool dynamic = false;
};

/// c = a b', boxes by a role of their own.
ThreadKernel product(const Options& o) {
    Tensor a = input("a", bf16, {o.m, o.k}), b = input("b", bf16, {o.n, o.k});
    Tensor c = compute("c", {o.m, o.n}, [&](Expr i, Expr j) {
        Axis r = reduce_axis("r", o.triangular ? (i / 64 + 1) * 64 : Expr(o.k));
        return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r);
    });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, mi] = s.split(i, 64, Tail::Mask);
    auto [bo, rank] = s.split(bi, o.cluster, Tail::Mask);
    auto [bj, nj] = s.split(j, 64, Tail::Mask);
    auto [wi, rows] = s.split(mi, 64);
    auto [ko, ki] = s.split(s.reduce(c), 64, Tail::Mask);
    s.order({bo, bj, rank, wi, ko, rows, nj, ki});
    s.persistent({bo, bj}, {.blocks = o.blocks, .longest_first = o.longest_first, .dynamic = o.dynamic});
    s.bind(rank, cluster);
    s.bind(wi, warpgroup);
    Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, ko);
    s.mma(c, wgmma, {.m = rows, .n = nj, .k = ki});
    s.pipeline(ko, {.stages = o.stages, .in_flight = o.in_flight});
    s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(o.turns), {}, {c}, ping_pong(o.turns)}});
    ThreadKernel found;
    LowerOptions options;
    options.printed = [&](const ThreadKernel& kernel) { found = kernel; };
    lower(s.tree(), target("sm_90a"), options);
    return found;
}

/// The same in two loops over terms: b's boxes come with the outer one. `in_flight`: of the outer loop.
ThreadKernel nested_product(int64_t outer, int64_t inner, int in_flight, int turns) {
    Tensor a = input("a", bf16, {256, outer * inner * 64}), b = input("b", bf16, {64, outer * inner * 64});
    Axis r = reduce_axis("r", outer * inner * 64);
    Tensor c = compute("c", {256, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, rows] = s.split(i, 64);
    auto [q, rest] = s.split(s.reduce(c), inner * 64);
    auto [ko, ki] = s.split(rest, 64);
    s.order({bi, q, ko, rows, j, ki});
    s.persistent({bi}, {.blocks = 2});
    Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, q);
    s.mma(c, wgmma, {.m = rows, .n = j, .k = ki});
    s.pipeline(ko, {.stages = 3, .in_flight = 1});
    s.pipeline(q, {.stages = 2, .in_flight = in_flight});
    s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(turns), {}, {c}, ping_pong(turns)}});
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

/// The kernel with each instruction of this kind changed by the rule; an undefined statement leaves it out.
template <class I>
ThreadKernel altered(ThreadKernel kernel, const std::function<ThreadStmt(const I&)>& rule) {
    kernel.body = transform(kernel.body, [&](const ThreadStmt& stmt) {
        const I* one = instruction_of<I>(stmt);
        if (!one) return ThreadStmt();
        ThreadStmt other = rule(*one);
        return other.defined() ? other : make_thread(ThreadBlock{});
    });
    return kernel;
}

template <class I>
ThreadKernel without(const ThreadKernel& kernel) {
    return altered<I>(kernel, [](const I&) { return ThreadStmt(); });
}

/// The kernel with another number in each instruction of this kind.
template <class I>
ThreadKernel with(const ThreadKernel& kernel, Expr I::*number, const std::function<Expr(const Expr&)>& other) {
    return altered<I>(kernel, [&](I one) {
        one.*number = other(one.*number);
        return make_thread(Instruction(std::move(one)));
    });
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
    auto tells = [](const std::string& text, const std::string& part) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " is not in '" << text << "'";
    };
    auto problem = [](const ThreadKernel& wrong) { return first_problem(wrong); };
    tells(problem(without<MbarrierArrive>(kernel)), "for ever");
    tells(problem(without<MbarrierExpectTx>(kernel)), "for ever");
    tells(problem(without<MbarrierWait>(kernel)), "more arrive at r_outer_full[0]");
    tells(problem(with(kernel, &MbarrierWait::parity, [](const Expr& parity) { return 1 - parity; })),
          "which has not arrived");
    tells(problem(with(kernel, &MbarrierInit::arrivals, [](const Expr& count) { return count + 1; })), "for ever");
    tells(problem(with(kernel, &MbarrierExpectTx::bytes, [](const Expr& bytes) { return bytes - 16; })), "for ever");
    tells(problem(altered<WgmmaWait>(kernel, [](const WgmmaWait&) { return make_thread(Instruction(WgmmaWait{2})); })),
          "which is still read");
    tells(problem(altered<TmaLoad>(kernel,
                                   [](const TmaLoad& load) {
                                       ThreadStmt one = make_thread(Instruction(load));
                                       return make_thread(ThreadBlock{{one, one}});
                                   })),
          "which has not arrived");
}

// Phases that count wrongly once the ring has turned, which small kernels do not show.
TEST(SimulateSignals, CountsPhasesOfLongSums) {
    ThreadKernel kernel = product({.k = 64 * 37, .stages = 3});
    EXPECT_EQ(first_problem(kernel), "");
    ThreadKernel wrong = altered<MbarrierWait>(kernel, [](MbarrierWait wait) {
        wait.parity = select(wait.barrier.place.indices[0] == 2, 1 - wait.parity, wait.parity);
        return make_thread(Instruction(std::move(wait)));
    });
    EXPECT_NE(first_problem(wrong), "");
}

// From the inner of two loops over terms into the outer one's next iteration: no time goes by between.
TEST(SimulateSignals, HasProductsRunOnAcrossLoops) {
    for (int turns : {1, 2})
        for (int64_t inner : {1, 2, 5})
            for (int64_t outer : {1, 2, 7}) {
                const ThreadKernel kernel = nested_product(outer, inner, 1, turns);
                EXPECT_EQ(first_problem(kernel), "") << outer << " x " << inner;
                if (outer == 1) continue;
                const SignalSpeeds at_once{.load_latency = 0, .bytes_per_cycle = 0};
                auto cycles = [&](const ThreadKernel& one) {
                    return simulate_signals(one, everything, at_once).cycles;
                };
                if (turns == 1) {
                    EXPECT_LT(cycles(kernel), cycles(nested_product(outer, inner, 0, turns)));
                }
            }
    const ThreadKernel kernel = nested_product(7, 1, 1, 1);
    const auto with_waits = [&](int pending) {
        return altered<WgmmaWait>(kernel, [&](WgmmaWait wait) {
            if (wait.pending == 1) wait.pending = pending;
            return make_thread(Instruction(wait));
        });
    };
    EXPECT_EQ(first_problem(with_waits(0)), "");
    EXPECT_NE(first_problem(with_waits(2)).find("which is still read"), std::string::npos);
    std::set<std::string> rings;
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        if (auto arrive = instruction_of<MbarrierArrive>(stmt)) rings.insert(arrive->barrier.place.buffer->name);
    });
    EXPECT_EQ(rings.size(), 2u);
    for (const std::string& ring : rings) {
        const auto problem_with = [&](const std::function<ThreadStmt(MbarrierArrive)>& rule) {
            return first_problem(altered<MbarrierArrive>(kernel, [&](const MbarrierArrive& arrive) {
                return arrive.barrier.place.buffer->name == ring ? rule(arrive) : make_thread(Instruction(arrive));
            }));
        };
        EXPECT_NE(problem_with([](const MbarrierArrive&) { return ThreadStmt(); }), "") << ring;
        EXPECT_NE(problem_with([](MbarrierArrive arrive) {  // of the iteration whose products run
                      Expr& stage = arrive.barrier.place.indices[0];
                      stage = simplify((stage + 1) % arrive.barrier.place.buffer->shape[0]);
                      return make_thread(Instruction(std::move(arrive)));
                  }),
                  "")
            << ring;
    }
}

// Loops of different lengths, whose iterations each role counts.
TEST(SimulateSignals, KnowsWhatRolesCount) {
    ThreadKernel kernel = product({.triangular = true});
    EXPECT_TRUE(simulate_signals(kernel, everything).simulated);
    EXPECT_EQ(first_problem(kernel), "");
    for (int turns : {1, 2, 3})
        for (bool longest_first : {false, true})
            EXPECT_EQ(first_problem(product({.m = 512,
                                             .stages = 2,
                                             .in_flight = 0,
                                             .turns = turns,
                                             .cluster = 2,
                                             .blocks = 4,
                                             .longest_first = longest_first,
                                             .triangular = true})),
                      "");
    int counters = 0;
    kernel.body = transform(kernel.body, [&](const ThreadStmt& stmt) {
        const ThreadStore* store = stmt.as<ThreadStore>();
        bool counts = store && store->to.buffer->below > 0 && !as_constant(store->value);
        if (!counts || ++counters != 1) return ThreadStmt();
        return make_thread(ThreadStore{store->to, simplify((store->value + 1) % store->to.buffer->below), {}});
    });
    EXPECT_EQ(counters, 2);
    EXPECT_NE(first_problem(kernel), "");
}

// Each tile is some block's; where later tiles take longer, all blocks have about as much to do.
TEST(SimulateSignals, GrowingTilesAreSharedEvenly) {
    for (int cluster : {1, 2})
        for (int64_t rows : {8, 9, 11}) {
            Options o{
                .m = 64 * cluster * rows, .n = 64, .k = 64 * 22, .cluster = cluster, .blocks = 4, .triangular = true};
            auto loads = [&](bool longest_first) {
                o.longest_first = longest_first;
                auto events = SignalEvents::of(product(o));
                std::vector<int64_t> found;
                for (int block = 0; block < o.blocks; ++block)
                    found.push_back(std::ranges::count_if(events->run(block, 128, everything).events, [](auto& event) {
                        return event.kind == SignalEvent::Kind::Load;
                    }));
                return found;
            };
            std::vector<int64_t> plain = loads(false), even = loads(true);
            auto total = [](const auto& list) { return std::accumulate(list.begin(), list.end(), int64_t{0}); };
            auto [least, most] = std::ranges::minmax(even);
            EXPECT_EQ(total(even), total(plain));
            EXPECT_LT(most, std::ranges::max(plain)) << rows;
            EXPECT_LE(most - least, std::ranges::max(plain) / 2) << rows;
        }
}

// Tickets are simulated as if blocks took them in turn. Of tiles that are shorter than the ring, loads are several
// ahead.
TEST(SimulateSignals, HandsTicketsOn) {
    for (auto [k, triangular] : {std::pair(64, false), {512, false}, {512, true}}) {
        const Options o{.m = 512,
                        .k = k,
                        .stages = 4,
                        .in_flight = 0,
                        .longest_first = triangular,
                        .triangular = triangular,
                        .dynamic = true};
        EXPECT_TRUE(simulate_signals(product(o), everything).simulated);
        EXPECT_EQ(first_problem(product(o)), "");
    }
    const ThreadKernel kernel = product({.m = 512, .k = 64, .stages = 4, .in_flight = 0, .dynamic = true});
    auto leaves = [&]<class I>(const I& one, const char* barrier) {
        return one.barrier.place.buffer->name == barrier ? ThreadStmt() : make_thread(Instruction(one));
    };
    for (const char* barrier : {"ticket_empty", "ticket_full"})
        EXPECT_NE(first_problem(altered<MbarrierArrive>(kernel, [&](auto& one) { return leaves(one, barrier); })), "")
            << barrier;
    // That what has been handed on is awaited is seen where values are: in the emulator.
    EXPECT_NE(first_problem(altered<MbarrierWait>(kernel, [&](auto& one) { return leaves(one, "ticket_empty"); })), "");
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

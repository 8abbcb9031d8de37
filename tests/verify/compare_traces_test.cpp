// Which differences between two kernels' traces are none.
#include <optional>

#include <gtest/gtest.h>

#include "verify/trace_threads.h"

namespace tw::fuzz {
namespace {

using Kind = TracedOperation::Kind;
using Threads = std::vector<ThreadTrace>;

TracedOperation other(uint64_t operation) { return {.operation = operation}; }
TracedOperation result(uint64_t operation) { return {.operation = operation, .kind = Kind::Result}; }
TracedOperation barrier(int number) { return {.operation = 1, .kind = Kind::Barrier, .number = number}; }
TracedOperation arrival(uint64_t place) { return {.operation = place, .kind = Kind::Arrival, .place = place}; }
TracedOperation products(int number) { return {.operation = 2, .kind = Kind::Products, .number = number}; }
TracedOperation wait(uint64_t place, int parity) {
    return {.operation = place * 2 + uint64_t(parity), .kind = Kind::Wait, .number = parity, .place = place};
}

/// One warpgroup, each thread of which does `own`, and those that are named something else.
Threads warpgroup(const std::vector<TracedOperation>& own,
                  const std::map<size_t, std::vector<TracedOperation>>& others = {}) {
    Threads threads(128);
    for (size_t t = 0; t < threads.size(); ++t) threads[t].after = others.contains(t) ? others.at(t) : own;
    return threads;
}

Sameness compared(Threads original, Threads mutant) {
    normalise(original);
    normalise(mutant);
    return why_same({original}, {mutant});
}

TEST(CompareTraces, DifferentOperationsAreNotTheSame) {
    Threads original = warpgroup({other(1), other(2)});
    EXPECT_EQ(compared(original, original).reason, "every thread does the same");
    EXPECT_EQ(compared(original, warpgroup({other(2), other(1)})).reason, "");
    EXPECT_EQ(compared(original, warpgroup({other(1)})).reason, "");
    EXPECT_EQ(compared(original, warpgroup({other(1), other(2), result(3)})).reason, "");
    EXPECT_EQ(compared(original, warpgroup({other(1), other(2), other(3)})).reason, "");
    EXPECT_EQ(compared(original, warpgroup({other(1), other(2), wait(7, 0), other(3)})).reason,
              "goes on after its last result");
    EXPECT_EQ(compared(original, warpgroup({other(1), other(2), wait(7, 0), result(3)})).reason, "");
    EXPECT_EQ(why_same({original}, {original, original}).reason, "");
}

/// They could only make the kernel hang, or find no registers.
TEST(CompareTraces, ThreadsMayStandBy) {
    const Threads original = warpgroup({barrier(0), other(1)}, {{5, {barrier(0), wait(2, 0)}}});
    auto beside = [&](const std::vector<TracedOperation>& more) {
        Threads threads = original;
        for (const ThreadTrace& thread : warpgroup(more)) threads.push_back(thread);
        return compared(original, threads);
    };
    const TracedOperation idle{.operation = 3, .kind = Kind::Idle};
    EXPECT_EQ(beside({barrier(0), idle}).reason, "every thread does the same, beside threads that do nothing");
    EXPECT_TRUE(beside({barrier(0), idle}).unless_it_hangs);
    for (const TracedOperation& act : {other(2), result(2), arrival(2), wait(2, 0), barrier(1)})
        EXPECT_EQ(beside({barrier(0), act}).reason, "");
    EXPECT_EQ(compared(original, warpgroup({barrier(0), other(2)})).reason, "");
    EXPECT_EQ(compared(original, {original.begin(), original.end() - 1}).reason, "");
}

/// A ring's stages are empty before they have been filled for the first time.
TEST(CompareTraces, TheFirstWaitForAnEmptyStageIsForNothing) {
    const std::vector<TracedOperation> own = {wait(7, 1), other(1), wait(7, 0), other(2), wait(7, 1), other(3)};
    auto without = [&](size_t which) {
        std::vector<TracedOperation> left = own;
        left.erase(left.begin() + static_cast<ptrdiff_t>(which));
        return compared(warpgroup(own), warpgroup(left));
    };
    EXPECT_EQ(without(0).reason, "every thread does the same, but for what has no effect");
    EXPECT_TRUE(without(0).unless_it_hangs);
    for (size_t which = 1; which < own.size(); ++which) EXPECT_EQ(without(which).reason, "");
    EXPECT_EQ(compared(warpgroup({wait(7, 0), other(1), wait(7, 1)}), warpgroup({other(1), wait(7, 1)})).reason, "");
}

TEST(CompareTraces, AnyBlockOfAClusterAsksForItsBoxes) {
    auto asks = [](uint64_t first, uint64_t second) {
        TracedOperation one{.operation = first, .kind = Kind::Multicast},
            two{.operation = second, .kind = Kind::Multicast};
        return warpgroup({wait(7, 0)}, {{0, {wait(7, 0), one, two}}});
    };

    Sameness same = why_same({asks(1, 2), asks(3, 4)}, {asks(3, 2), asks(1, 4)});
    EXPECT_EQ(same.reason, "every thread does the same, but for which block of a cluster asks for a box");
    EXPECT_TRUE(same.unless_it_hangs);
    EXPECT_EQ(why_same({asks(1, 2), asks(3, 4)}, {asks(2, 1), asks(3, 4)}).reason, "");
    EXPECT_EQ(why_same({asks(1, 2), asks(3, 4)}, {asks(1, 2), asks(1, 4)}).reason, "");
}

TEST(CompareTraces, LanesChangePlacesWhereTheyAreAlike) {
    Threads original = warpgroup({other(1)}, {{0, {other(1), other(2)}}});
    EXPECT_EQ(compared(original, warpgroup({other(1)}, {{1, {other(1), other(2)}}})).reason,
              "two threads of a warp change places");
    EXPECT_EQ(compared(original, warpgroup({other(1)}, {{32, {other(1), other(2)}}})).reason, "");
    Threads multiplying = warpgroup({products(0)}, {{0, {products(0), other(2)}}});
    EXPECT_EQ(compared(multiplying, warpgroup({products(0)}, {{1, {products(0), other(2)}}})).reason, "");
}

TEST(CompareTraces, AnyThreadOfAWarpgroupArrives) {
    const std::vector<TracedOperation> own = {wait(7, 0), products(0)};
    const std::vector<TracedOperation> arrives = {wait(7, 0), products(0), arrival(9)}, waits = {wait(9, 0)},
                                       early = {wait(7, 0), arrival(9), products(0)};
    // Somebody waits for it: thread 5.
    Threads original = warpgroup(own, {{0, arrives}, {5, waits}});
    EXPECT_EQ(compared(original, warpgroup(own, {{64, arrives}, {5, waits}})).reason,
              "another thread of the warpgroup says that it is done");
    EXPECT_EQ(compared(original, warpgroup(own, {{64, early}, {5, waits}})).reason, "");
    EXPECT_EQ(compared(original, warpgroup(own, {{0, arrives}, {1, arrives}, {5, waits}})).reason, "");
    EXPECT_EQ(compared(original, warpgroup(own, {{5, waits}})).reason, "");
}

TEST(CompareTraces, BarriersThatNobodyNeedsHaveNoEffect) {
    const std::string no_effect = "every thread does the same, but for what has no effect";
    Threads original = warpgroup({wait(9, 1), arrival(9), other(1)});
    Sameness same = compared(original, warpgroup({other(1)}));
    EXPECT_EQ(same.reason, no_effect);
    EXPECT_TRUE(same.unless_it_hangs);
    EXPECT_EQ(compared(warpgroup({wait(9, 0), other(1)}), warpgroup({other(1)})).reason, "");
    EXPECT_EQ(compared(warpgroup({wait(9, 1), wait(9, 1), other(1)}), warpgroup({other(1)})).reason, "");
    EXPECT_EQ(compared(warpgroup({products(1), products(0)}), warpgroup({products(0)})).reason, no_effect);
    EXPECT_EQ(compared(warpgroup({products(1), result(5), products(0)}), warpgroup({result(5), products(0)})).reason,
              "");
}

TEST(CompareTraces, ArrivalsForPhasesThatNobodyWaitsForHaveNoEffect) {
    auto told = [&](const std::vector<TracedOperation>& by_first, const std::vector<TracedOperation>& by_second = {}) {
        return warpgroup({wait(9, 0), other(3), wait(9, 1)}, {{0, by_first}, {1, by_second}});
    };
    const Threads original = told({arrival(9), other(1), arrival(9), other(2), arrival(9)});
    EXPECT_EQ(compared(original, told({arrival(9), other(1), arrival(9), other(2)})).reason,
              "every thread does the same, but for what has no effect");
    EXPECT_EQ(compared(original, told({arrival(9), other(1), other(2)})).reason, "");
    // Who else of the warpgroup tells the last: no arrival is taken for idle in one of the two alone.
    EXPECT_EQ(compared(original, told({arrival(9), other(1), arrival(9), other(2)}, {arrival(9)})).reason,
              "another thread of the warpgroup says that it is done");
    // Who waits for one parity again and again goes by no phase that is known.
    auto by_parity = [&](const std::vector<TracedOperation>& own) {
        return warpgroup({wait(9, 0), other(3), wait(9, 0)}, {{0, own}});
    };
    EXPECT_EQ(compared(by_parity({arrival(9), arrival(9), arrival(9)}), by_parity({arrival(9), arrival(9)})).reason,
              "");
}

TEST(CompareTraces, MoreWaitsCanOnlyHang) {
    const std::vector<TracedOperation> own = {wait(7, 0), products(1), other(3)},
                                       more = {wait(7, 0), products(0), wait(7, 1), other(3)};
    Sameness same = compared(warpgroup(own), warpgroup(more));
    EXPECT_EQ(same.reason, "only waits more often, or for more");
    EXPECT_TRUE(same.unless_it_hangs);
    EXPECT_EQ(compared(warpgroup(more), warpgroup(own)).reason, "");
}

TEST(CompareTraces, NumbersOfBarriersTellThreadsApart) {
    auto numbered = [](int first, int second) {
        Threads threads = warpgroup({barrier(first), other(1), barrier(first)});
        for (size_t t = 64; t < 128; ++t) threads[t].after = {barrier(second), other(2), barrier(second)};
        return threads;
    };
    Threads original = numbered(1, 2);
    EXPECT_EQ(compared(original, numbered(4, 3)).reason, "every thread does the same");
    EXPECT_EQ(compared(original, numbered(2, 2)).reason, "");
}

/// A store, a barrier, perhaps a read by thread 1, a barrier, and another store.
Threads stores(bool stored, bool read) {
    const TracedOperation store{.operation = 5, .kind = Kind::Store, .number = 2, .place = 100};
    Threads threads = warpgroup({barrier(1), barrier(1)});
    std::vector<TracedOperation> own = {barrier(1), barrier(1), store};
    if (stored) own.insert(own.begin(), store);
    threads[0].after = own;
    for (uint64_t place : {100, 101}) {
        if (stored) threads[0].accesses.push_back({place, 0, true});
        threads[0].accesses.push_back({place, 2, true});
    }
    if (read) threads[1].accesses.push_back({101, 1, false});
    threads[1].accesses.push_back({100, 3, false});
    return threads;
}

TEST(CompareTraces, StoresThatNobodyReadsHaveNoEffect) {
    EXPECT_EQ(compared(stores(false, false), stores(true, false)).reason,
              "every thread does the same, but for what has no effect");
    EXPECT_EQ(compared(stores(false, true), stores(true, true)).reason, "");
}

/// A warp whose lane t stores a row of matrices at t * 8; somebody reads one of these rows behind a barrier, or none.
Threads matrices(bool stored, std::optional<uint64_t> read, uint64_t held = 0) {
    Threads threads(32);
    for (uint64_t t = 0; t < threads.size(); ++t) {
        if (stored) {
            threads[t].after.push_back(
                {.operation = t == 1 ? held : 0, .kind = Kind::Matrices, .number = 8, .place = t * 8});
            for (uint64_t e = 0; e < 8; ++e) threads[t].accesses.push_back({t * 8 + e, 0, true});
        }
        threads[t].after.push_back(barrier(0));
    }
    if (read) threads[0].accesses.push_back({*read * 8, 1, false});
    return threads;
}

TEST(CompareTraces, WhatALaneHoldsGoesToRowsOfOthers) {
    EXPECT_EQ(compared(matrices(false, {}), matrices(true, {})).reason,
              "every thread does the same, but for what has no effect");
    EXPECT_EQ(compared(matrices(false, 5), matrices(true, 5)).reason, "");
    EXPECT_EQ(compared(matrices(true, {}, 1), matrices(true, {}, 2)).reason,
              "every thread does the same, but for what has no effect");
    EXPECT_EQ(compared(matrices(true, 5, 1), matrices(true, 5, 2)).reason, "");
}

/// Two threads: when they waited for the launches before, and when they touched global memory without it.
TEST(CompareTraces, WhoTouchesGlobalMemoryHasWaitedOrMetOneWhoHas) {
    using When = std::optional<int>;
    auto waits = [](When first, When second, When relied) {
        return all_wait_for_previous({{{.waited = first}, {.waited = second, .relied = relied}}});
    };
    EXPECT_TRUE(waits(0, 0, {}));
    EXPECT_TRUE(waits({}, {}, {}));
    EXPECT_TRUE(waits(0, {}, 1));
    EXPECT_TRUE(waits(1, 3, 2));
    EXPECT_FALSE(waits(0, {}, 0));
    EXPECT_FALSE(waits(1, {}, 1));
    EXPECT_FALSE(waits({}, 1, 0));
    EXPECT_FALSE(waits({}, {}, 5));
}

}  // namespace
}  // namespace tw::fuzz

#include "runtime/emulator/units/thread_barriers.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace tw::emulator {

namespace {

std::string thread_text(uint32_t thread) { return fmt::format("thread ({},0,0)", thread % core->threads.per_block()); }

}  // namespace

void ThreadBarriers::begin() {
    blocks_.assign(core_.memories.num_blocks(), {});
    arrived_in_warp_.assign(threads_.num_warps(), 0);
    shuffled_.assign(threads_.count(), {});
}

void ThreadBarriers::sync_threads(Stamp site) {
    const uint32_t rank = threads_.rank_of(running.thread);
    Block& here = blocks_[rank];
    const std::vector<uint32_t> all = threads_.of_block(rank);
    if (threads_.num_gone_of(rank) > 0) {
        auto gone = std::find_if(all.begin(), all.end(), [&](uint32_t t) { return threads_[t].wait == Wait::Gone; });
        diverge(fmt::format("reaches __syncthreads at {{}}, but {} has returned from the kernel", thread_text(*gone)),
                site, {uint32_t(site)});
    }
    threads_.wait(Wait::Block, site);
    if (++here.num_arrived == all.size()) {
        here.num_arrived = 0;
        core_.order.meet(all);
        threads_.wake(all);
        if (core_.tally) core_.tally->count_barrier();
    }
    threads_.let_others_run();
}

/// Who uses a barrier behind others must know that they have met: else their arrivals could be taken for its own.
void ThreadBarriers::require_order_with_last(const NamedBarrier& barrier, int id, Stamp site) {
    const bool same =
        barrier.met.empty() || std::find(barrier.met.begin(), barrier.met.end(), running.thread) != barrier.met.end();
    if (same || threads_.current().knowledge->writes.of(barrier.met[0]) >= barrier.met_clock) return;
    diverge(fmt::format("uses barrier {} at {{}}, {} and {} others did before, and nothing in between orders them", id,
                        thread_text(barrier.met[0]), barrier.met.size() - 1),
            site, {uint32_t(site)});
}

ThreadBarriers::NamedBarrier& ThreadBarriers::named_barrier(int id, int expected, Stamp site) {
    if (id < 1 || id > 15 || expected <= 0 || expected % 32 != 0 ||
        unsigned(expected) > (threads_.per_block() + 31) / 32 * 32)
        diverge(fmt::format("waits at barrier {} for {} threads at {{}}: barriers are 1 to 15, since 0 is that of "
                            "__syncthreads, threads "
                            "whole warps of the block",
                            id, expected),
                site, {uint32_t(site)});
    NamedBarrier& barrier = blocks_[threads_.rank_of(running.thread)].named[id];
    const bool is_open = !barrier.arrived.empty() || !barrier.told.empty();
    if (is_open && barrier.expected != expected) {
        const bool waits = !barrier.arrived.empty();
        const uint32_t other = waits ? barrier.arrived[0] : barrier.told[0];
        diverge(fmt::format("waits at barrier {} for {} threads at {{}}, {} for {} at {{}}", id, expected,
                            thread_text(other), barrier.expected),
                site, {uint32_t(site), waits ? threads_[other].site : uint32_t(barrier.told_at)});
    }
    if (std::ranges::find(barrier.told, running.thread) != barrier.told.end())
        diverge(fmt::format("comes to barrier {} at {{}}, but has come there at {{}} for the same {} threads already",
                            id, expected),
                site, {uint32_t(site), uint32_t(barrier.told_at)});
    require_order_with_last(barrier, id, site);
    barrier.expected = expected;
    return barrier;
}

/// Those who wait know what all have done; those who do not learn nothing.
void ThreadBarriers::complete(int id, NamedBarrier& barrier, Stamp site) {
    if (int(barrier.arrived.size() + barrier.told.size()) < barrier.expected) return;
    if (barrier.arrived.empty())
        diverge(fmt::format("is the last of {} threads that come to barrier {} at {{}}, none of which waits there",
                            barrier.expected, id),
                site, {uint32_t(site)});
    const std::vector<uint32_t> waiting = std::exchange(barrier.arrived, {});
    core_.order.meet(waiting);
    barrier.met = waiting;
    barrier.met_clock = threads_[waiting[0]].clock;
    if (!barrier.told.empty()) {
        const auto known = std::make_shared<const Knowledge>(std::exchange(barrier.passed_on, {}));
        for (uint32_t t : waiting) core_.order.learn(t, known);
        barrier.met.insert(barrier.met.end(), barrier.told.begin(), barrier.told.end());
        barrier.told.clear();
    }
    threads_.wake(waiting);
    if (core_.tally) core_.tally->count_barrier();
}

void ThreadBarriers::sync_named(int id, int expected, Stamp site) {
    NamedBarrier& barrier = named_barrier(id, expected, site);
    threads_.wait(Wait::Named, site);
    threads_.current().barrier = id;
    barrier.arrived.push_back(running.thread);
    complete(id, barrier, site);
    threads_.let_others_run();
}

void ThreadBarriers::arrive_named(int id, int expected, Stamp site) {
    NamedBarrier& barrier = named_barrier(id, expected, site);
    barrier.passed_on.join(*core_.order.release());
    barrier.told.push_back(running.thread);
    barrier.told_at = site;
    complete(id, barrier, site);
    core_.perhaps_let_others_run();
}

void ThreadBarriers::require_none_is_left(uint32_t rank) {
    for (int id = 1; id < 16; ++id) {
        const NamedBarrier& barrier = blocks_[rank].named[id];
        if (barrier.told.empty()) continue;
        diverge(fmt::format("is the last of its block to return, but {} threads have come to barrier {} at {{}}, which "
                            "takes {}, and nobody has waited for them",
                            barrier.told.size(), id, barrier.expected),
                0, {uint32_t(barrier.told_at)});
    }
}

/// Compilers may copy a call: what counts is the line.
void ThreadBarriers::require_same_place(const Thread& first, Stamp site) {
    if (first.site == site) return;
    bool same_line = false;
    const Module& module = core_.module;
    threads_.on_scheduler([&] { same_line = module.locate(first.site).is_same_line(module.locate(uint32_t(site))); });
    if (same_line) return;
    diverge(
        fmt::format("is at {{}}, {} of the same warp at {{}}: the lanes of a warp carry out its operations together",
                    thread_text(first.state.thread.x)),
        site, {uint32_t(site), first.site});
}

bool ThreadBarriers::arrive_at_warp(Wait kind, Stamp site) {
    unsigned& num_arrived = arrived_in_warp_[running.warp];
    for (uint32_t t : threads_.of_warp(running.warp)) {
        const Thread& other = threads_[t];
        if (other.wait == Wait::Gone)
            diverge(fmt::format("waits in {} at {{}}, but {} of the same warp has returned from the kernel",
                                call_text(kind), thread_text(t)),
                    site, {uint32_t(site)});
        if (is_of_warp(other.wait)) {
            require_same_place(other, site);
            break;  // those that wait agree with each other
        }
    }
    threads_.wait(kind, site);
    if (++num_arrived < threads_.lanes_of_warp(running.warp)) return false;
    num_arrived = 0;
    if (core_.tally) core_.tally->count_warp_operation();
    return true;
}

void ThreadBarriers::sync_warp(Stamp site) {
    if (arrive_at_warp(Wait::WarpBarrier, site)) {
        core_.order.meet(threads_.of_warp(running.warp));
        threads_.wake(threads_.of_warp(running.warp));
    }
    threads_.let_others_run();
}

uint64_t ThreadBarriers::shuffle(uint64_t value, int source_lane, Stamp site) {
    Shuffled& own = shuffled_[running.thread];
    const unsigned num_lanes = threads_.lanes_of_warp(running.warp);
    if (unsigned(source_lane) >= num_lanes)
        diverge(fmt::format("reads lane {} of a warp of {} in a shuffle at {{}}", source_lane, num_lanes), site,
                {uint32_t(site)});
    own = {value, source_lane};
    if (arrive_at_warp(Wait::Shuffle, site)) {
        Shuffled* lanes = &shuffled_[running.warp * WarpThreads];
        uint64_t given[WarpThreads];
        for (unsigned i = 0; i < num_lanes; ++i) given[i] = lanes[i].value;
        for (unsigned i = 0; i < num_lanes; ++i) lanes[i].value = given[lanes[i].source_lane];
        threads_.wake(threads_.of_warp(running.warp));
    }
    threads_.let_others_run();
    return own.value;
}

void ThreadBarriers::converge(Stamp site) {
    if (arrive_at_warp(Wait::Matrix, site)) threads_.wake(threads_.of_warp(running.warp));
    threads_.let_others_run();
}

/// Any lane, but always the same: a kernel that counts on the first one is wrong.
bool ThreadBarriers::elect_one(Stamp site) {
    converge(site);
    return running.lane == (core_.options.seed * 7 + running.warp * 5) % threads_.lanes_of_warp(running.warp);
}

bool ThreadBarriers::arrive_at_warpgroup(const char* name, Stamp site) {
    if (threads_.per_block() % WarpgroupThreads != 0)
        diverge(fmt::format("is at {} at {{}} in a block of {} threads; it takes whole warpgroups of 128", name,
                            threads_.per_block()),
                site, {uint32_t(site)});
    uint32_t num_arrived = 1;
    for (uint32_t t : threads_.of_warpgroup(running.thread / WarpgroupThreads)) {
        const Thread& other = threads_[t];
        if (other.wait == Wait::Gone)
            diverge(fmt::format("waits in {} at {{}}, but thread ({},0,0) of the same warpgroup has returned from the "
                                "kernel",
                                name, other.state.thread.x),
                    site, {uint32_t(site)});
        if (other.wait != Wait::Warpgroup) continue;
        require_same_place(other, site);
        ++num_arrived;
    }
    threads_.wait(Wait::Warpgroup, site);
    return num_arrived == WarpgroupThreads;
}

void ThreadBarriers::require_nobody_waits() {
    const uint32_t rank = threads_.rank_of(running.thread);
    if (blocks_[rank].num_arrived == 0 && arrived_in_warp_[running.warp] == 0) return;
    for (uint32_t t : threads_.of_block(rank)) {
        const Thread& other = threads_[t];
        const bool same_warp = t / WarpThreads == running.warp;
        if (other.wait == Wait::Block || (same_warp && is_of_warp(other.wait)))
            diverge(fmt::format("returns from the kernel, but {} waits in {} at {{}}", thread_text(t),
                                call_text(other.wait)),
                    0, {other.site});
    }
}

}  // namespace tw::emulator

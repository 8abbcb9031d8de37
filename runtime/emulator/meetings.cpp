// Where threads wait for each other: barriers of the block, named barriers, and the operations of a warp.
#include <algorithm>
#include <numeric>

#include "runtime/emulator/machine.h"

namespace tw::emulator {

namespace {

std::string thread_text(uint32_t thread) {
    return fmt::format("thread ({},0,0)", thread % machine->threads_per_block());
}

}  // namespace

std::string call_text(Wait wait, int barrier) {
    switch (wait) {
        case Wait::Block: return "__syncthreads";
        case Wait::Named: return fmt::format("barrier {}", barrier);
        case Wait::WarpBarrier: return "__syncwarp";
        case Wait::Shuffle: return "a shuffle";
        case Wait::Transactions: return "mbarrier_wait";
        case Wait::Cluster: return "cluster_wait";
        case Wait::Warpgroup: return "an operation of its warpgroup";
        case Wait::Registers: return "setmaxnreg_inc";
        case Wait::Matrix: return "an operation of its warp";
        case Wait::Ready:
        case Wait::Gone: break;
    }
    return "nothing";
}

void Machine::wait(Wait wait, Stamp site) {
    current_->wait = wait;
    current_->site = uint32_t(site);
    --num_ready_;
}

void Machine::wake(const std::vector<uint32_t>& threads) {
    for (uint32_t t : threads) threads_[t].wait = Wait::Ready;
    num_ready_ += unsigned(threads.size());
}

/// All that any of the threads has done or knows lies before what they do from now on.
void Machine::meet(const std::vector<uint32_t>& threads) {
    auto known = std::make_shared<Knowledge>();
    const Knowledge* last = nullptr;
    for (uint32_t t : threads) {
        if (threads_[t].knowledge.get() != last) known->join(*threads_[t].knowledge);
        last = threads_[t].knowledge.get();
    }
    if (threads.size() == threads_.size()) {
        known->writes.know_all_threads(last_clock_);
        known->reads.know_all_threads(last_clock_);
        if (tally_) tally_->flush();
    } else {
        for (uint32_t t : threads) known->add(t, threads_[t].clock, num_threads());
    }
    const uint32_t clock = next_clock();
    for (uint32_t t : threads) {
        threads_[t].clock = clock;
        threads_[t].knowledge = known;
    }
}

void Machine::diverge(std::string text, Stamp site, std::vector<uint32_t> more_sites) {
    Incident incident = incident_of(Finding::Kind::Divergence, site);
    incident.text = std::move(text);
    incident.more_sites = std::move(more_sites);
    report(incident);
}

std::vector<uint32_t> Machine::threads_of_block(uint32_t rank) const {
    std::vector<uint32_t> all(launch_.threads);
    std::iota(all.begin(), all.end(), rank * launch_.threads);
    return all;
}

void Machine::sync_threads(Stamp site) {
    Block& here = block();
    const std::vector<uint32_t> all = threads_of_block(block_of(running.thread));
    if (here.num_gone > 0) {
        auto gone = std::find_if(all.begin(), all.end(), [&](uint32_t t) { return threads_[t].wait == Wait::Gone; });
        diverge(fmt::format("reaches __syncthreads at {{}}, but {} has returned from the kernel", thread_text(*gone)),
                site, {uint32_t(site)});
    }
    wait(Wait::Block, site);
    if (++here.num_at_barrier == all.size()) {
        here.num_at_barrier = 0;
        meet(all);
        wake(all);
        if (tally_) tally_->count_barrier();
    }
    switch_to_scheduler();
}

/// Who uses a barrier behind others must know that they have met: else their arrivals could be taken for its own.
void Machine::require_order_with_last(const NamedBarrier& barrier, int id, Stamp site) {
    const bool same =
        barrier.met.empty() || std::find(barrier.met.begin(), barrier.met.end(), running.thread) != barrier.met.end();
    if (same || current_->knowledge->writes.of(barrier.met[0]) >= barrier.met_clock) return;
    diverge(fmt::format("uses barrier {} at {{}}, {} and {} others did before, and nothing in between orders them", id,
                        thread_text(barrier.met[0]), barrier.met.size() - 1),
            site, {uint32_t(site)});
}

void Machine::sync_named(int id, int expected, Stamp site) {
    if (id < 1 || id > 15 || expected <= 0 || expected % 32 != 0 ||
        unsigned(expected) > (launch_.threads + 31) / 32 * 32)
        diverge(fmt::format("waits at barrier {} for {} threads at {{}}: barriers are 1 to 15, since 0 is that of "
                            "__syncthreads, threads "
                            "whole warps of the block",
                            id, expected),
                site, {uint32_t(site)});
    NamedBarrier& barrier = block().named[id];
    if (!barrier.arrived.empty() && barrier.expected != expected)
        diverge(fmt::format("waits at barrier {} for {} threads at {{}}, {} for {} at {{}}", id, expected,
                            thread_text(barrier.arrived[0]), barrier.expected),
                site, {uint32_t(site), threads_[barrier.arrived[0]].site});
    require_order_with_last(barrier, id, site);
    barrier.expected = expected;
    wait(Wait::Named, site);
    current_->barrier = id;
    barrier.arrived.push_back(running.thread);
    if (int(barrier.arrived.size()) == expected) {
        const std::vector<uint32_t> arrived = std::exchange(barrier.arrived, {});
        barrier.met = arrived;
        barrier.met_clock = threads_[arrived[0]].clock;
        meet(arrived);
        wake(arrived);
        if (tally_) tally_->count_barrier();
    }
    switch_to_scheduler();
}

std::vector<uint32_t> Machine::lanes_of(uint32_t warp) const {
    std::vector<uint32_t> lanes(warps_[warp].lanes);
    std::iota(lanes.begin(), lanes.end(), warp * 32);
    return lanes;
}

/// Compilers may copy a call: what counts is the line.
void Machine::require_same_place(const Thread& first, Stamp site) {
    if (first.site == site) return;
    bool same_line = false;
    on_scheduler([&] { same_line = module_.locate(first.site).is_same_line(module_.locate(uint32_t(site))); });
    if (same_line) return;
    diverge(
        fmt::format("is at {{}}, {} of the same warp at {{}}: the lanes of a warp carry out its operations together",
                    thread_text(first.state.thread.x)),
        site, {uint32_t(site), first.site});
}

/// Whether all lanes of the warp are here now.
bool Machine::arrive_at_warp(Wait kind, Stamp site) {
    Warp& warp = warps_[running.warp];
    for (uint32_t t : lanes_of(running.warp)) {
        const Thread& other = threads_[t];
        if (other.wait == Wait::Gone)
            diverge(fmt::format("waits in {} at {{}}, but {} of the same warp has returned from the kernel",
                                call_text(kind, 0), thread_text(t)),
                    site, {uint32_t(site)});
        if (is_of_warp(other.wait)) {
            require_same_place(other, site);
            break;  // those that wait agree with each other
        }
    }
    wait(kind, site);
    if (++warp.arrived < warp.lanes) return false;
    warp.arrived = 0;
    if (tally_) tally_->count_warp_operation();
    return true;
}

void Machine::sync_warp(Stamp site) {
    if (arrive_at_warp(Wait::WarpBarrier, site)) {
        meet(lanes_of(running.warp));
        wake(lanes_of(running.warp));
    }
    switch_to_scheduler();
}

uint64_t Machine::shuffle(uint64_t value, int source_lane, Stamp site) {
    Thread& self = *current_;
    const unsigned num_lanes = warps_[running.warp].lanes;
    if (unsigned(source_lane) >= num_lanes)
        diverge(fmt::format("reads lane {} of a warp of {} in a shuffle at {{}}", source_lane, num_lanes), site,
                {uint32_t(site)});
    self.value = value;
    self.source_lane = source_lane;
    if (arrive_at_warp(Wait::Shuffle, site)) {
        Thread* lanes = &threads_[running.warp * 32];
        uint64_t given[32];
        for (unsigned i = 0; i < num_lanes; ++i) given[i] = lanes[i].value;
        for (unsigned i = 0; i < num_lanes; ++i) lanes[i].value = given[lanes[i].source_lane];
        wake(lanes_of(running.warp));
    }
    switch_to_scheduler();
    return self.value;
}

/// The running thread has returned from the kernel.
void Machine::leave() {
    require_stores_read();
    const char* text = "returns from the kernel, but {} waits in {} at {{}}";
    auto waits = [&](auto& other) {
        const bool same_warp = uint32_t(&other - threads_.data()) / 32 == running.warp;
        const bool same_block = other.state.cluster_rank == current_->state.cluster_rank;
        return (other.wait == Wait::Block && same_block) || (same_warp && is_of_warp(other.wait));
    };
    if (block().num_at_barrier > 0 || warps_[running.warp].arrived > 0) {
        auto other = std::find_if(threads_.begin(), threads_.end(), waits);
        if (other != threads_.end())
            diverge(fmt::format(fmt::runtime(text), thread_text(other->state.thread.x), call_text(other->wait, 0)), 0,
                    {other->site});
    }
    wait(Wait::Gone, 0);
    ++num_gone_;
    if (++block().num_gone == launch_.threads) require_no_foreign_use();
}

/// Atomics are where the order of threads shows: now and then another one comes first. Also lets spinning threads see
/// what they wait for.
void Machine::perhaps_let_others_run() {
    if (random_.next() % 4 == 0) switch_to_scheduler();
}

/// "for phase 1 of the barrier at byte 512 of shared memory, which is in phase 1: 1 of 2 arrivals and ..."
std::string Machine::waiting_text(const Thread& thread) const {
    const TransactionBarrier& barrier = barriers_.at(thread.barrier_address);
    return fmt::format("for phase {} of {}, whose phase {} has {} of {} arrivals and {} bytes to come",
                       thread.barrier_phase, barrier_text(thread.barrier_address), barrier.phase,
                       barrier.count - barrier.pending, barrier.count, barrier.bytes);
}

/// "3 threads wait in __syncthreads at {}, first thread (0,0,0); ..." of those that nobody will wake.
void Machine::name_waiting_threads(Incident& incident) const {
    struct Group {
        const Thread* first;
        unsigned count;
    };
    std::vector<Group> groups;
    for (const Thread& thread : threads_) {
        if (thread.wait == Wait::Gone) continue;
        auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
            return group.first->wait == thread.wait && group.first->site == thread.site &&
                   group.first->barrier == thread.barrier && group.first->barrier_address == thread.barrier_address &&
                   group.first->barrier_phase == thread.barrier_phase;
        });
        if (same == groups.end())
            groups.push_back({&thread, 1});
        else
            ++same->count;
    }
    for (const Group& group : groups) {
        const Thread& first = *group.first;
        if (is_of_warp(first.wait)) incident.kind = Finding::Kind::Divergence;
        std::string others = group.count == 1 ? "waits" : fmt::format("and {} more wait", group.count - 1);
        std::string expected;
        if (first.wait == Wait::Named)
            expected = fmt::format(" ({} threads)", blocks_[first.state.cluster_rank].named[first.barrier].expected);
        if (first.wait == Wait::Transactions) expected = " " + waiting_text(first);
        incident.text +=
            fmt::format("{}{} {} in {}{} at {{}}", incident.text.empty() ? "" : "; ", thread_text(first.state.thread.x),
                        others, call_text(first.wait, first.barrier), expected);
        incident.more_sites.push_back(first.site);
    }
    if (num_gone_ > 0) incident.text += fmt::format("; {} threads have returned", num_gone_);
}

}  // namespace tw::emulator

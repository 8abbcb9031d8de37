#include "runtime/emulator/units/cluster.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

namespace tw::emulator {

void Cluster::begin() {
    used_by_.assign(core_.memories.num_blocks(), {});
    arrivals_.assign(threads_.count(), {});
    arrived_ = {};
    phase_ = num_arrived_ = 0;
}

void* Cluster::peer_shared(void* own, unsigned rank, Stamp site) {
    const auto address = reinterpret_cast<uintptr_t>(own);
    if (!core_.memories.is_shared_of(core_.running_rank(), address))
        misuse("asks for a peer's part of what is not in its own shared memory", site);
    if (rank >= core_.memories.num_blocks())
        misuse(fmt::format("asks for shared memory of rank {} of a cluster of {} blocks", rank,
                           core_.memories.num_blocks()),
               site);
    return reinterpret_cast<void*>(core_.memories.shared(rank).base + core_.memories.offset_in_block(address));
}

void Cluster::note_foreign_use(uint32_t rank, Stamp site) {
    if (threads_.num_gone_of(rank) == threads_.per_block())
        misuse(fmt::format("uses shared memory of {}, whose threads have all returned from the kernel",
                           rank == core_.running_rank() ? "its block" : fmt::format("rank {} of its cluster", rank)),
               site);
    used_by_[rank][running.thread] = running.clock;
}

void Cluster::note_use(const Memory& shared, Stamp site) {
    const uint32_t rank = core_.memories.rank_of(shared);
    if (rank != core_.running_rank()) note_foreign_use(rank, site);
}

void Cluster::require_no_foreign_use() {
    const uint32_t rank = core_.running_rank();
    Clocks known;
    for (uint32_t t : threads_.of_block(rank)) known.join(threads_[t].knowledge->reads);
    for (auto [id, clock] : used_by_[rank])
        if (known.of(id) < clock)
            misuse(fmt::format(
                       "is the last of its block to return from the kernel, and nothing orders before that what {} "
                       "does to its shared memory",
                       id < FirstAgent ? "a block of its cluster" : "a copy"),
                   0);
}

/// Passes on what the thread knows, and goes on.
void Cluster::arrive(Stamp site) {
    Arrival& own = arrivals_[running.thread];
    if (own.arrived)
        diverge("arrives at the barrier of its cluster at {} again, without cluster_wait between", site,
                {uint32_t(site)});
    own = {true, phase_};
    if (threads_.num_gone() > 0)
        diverge("arrives at the barrier of its cluster at {}, but a thread of it has returned from the kernel", site,
                {uint32_t(site)});
    arrived_.join(*core_.order.release());
    if (++num_arrived_ < threads_.count()) return;
    num_arrived_ = 0;
    ++phase_;
    completed_ = std::make_shared<const Knowledge>(std::exchange(arrived_, {}));
    std::vector<uint32_t> waiting;
    for (uint32_t t = 0; t < threads_.count(); ++t)
        if (threads_[t].wait == Wait::Cluster) waiting.push_back(t);
    for (uint32_t t : waiting) core_.order.learn(t, completed_);
    threads_.wake(waiting);
    if (core_.tally) core_.tally->flush();
}

void Cluster::wait(Stamp site) {
    Arrival& own = arrivals_[running.thread];
    if (!std::exchange(own.arrived, false))
        diverge("waits at the barrier of its cluster at {} without cluster_arrive before", site, {uint32_t(site)});
    if (own.phase == phase_) {
        threads_.wait(Wait::Cluster, site);
        threads_.let_others_run();
        return;
    }
    core_.order.learn(completed_);
}

}  // namespace tw::emulator

// Blocks that run together: their barrier, and the addresses of each other's shared memory.
#include "runtime/emulator/fiber_stacks.h"
#include "runtime/emulator/machine.h"

namespace tw::emulator {

void* Machine::peer_shared(void* own, unsigned rank, Stamp site) {
    const uintptr_t base = memories_[block_of(running.thread)].base, offset = reinterpret_cast<uintptr_t>(own) - base;
    if (offset >= SharedWindow) misuse("asks for a peer's part of what is not in its own shared memory", site);
    if (rank >= num_blocks_together_)
        misuse(fmt::format("asks for shared memory of rank {} of a cluster of {} blocks", rank, num_blocks_together_),
               site);
    return reinterpret_cast<void*>(memories_[rank].base + offset);
}

/// A block's shared memory ends with its last thread: copies and threads of other blocks that use it must do so before.
void Machine::note_foreign_use(uint32_t rank, Stamp site) {
    Block& there = blocks_[rank];
    if (there.num_gone == launch_.threads)
        misuse(
            fmt::format("uses shared memory of {}, whose threads have all returned from the kernel",
                        rank == block_of(running.thread) ? "its block" : fmt::format("rank {} of its cluster", rank)),
            site);
    there.used_by[running.thread] = running.clock;
}

void Machine::note_use(const Memory& shared, Stamp site) {
    const auto rank = uint32_t(&shared - memories_.data());
    if (rank != block_of(running.thread)) note_foreign_use(rank, site);
}

/// By the last thread of a block.
void Machine::require_no_foreign_use() {
    Clocks known;
    for (uint32_t t : threads_of_block(block_of(running.thread))) known.join(threads_[t].knowledge->reads);
    for (auto [id, clock] : block().used_by)
        if (known.of(id) < clock)
            misuse(fmt::format(
                       "is the last of its block to return from the kernel, and nothing orders before that what {} "
                       "does to its shared memory",
                       id < FirstAgent ? "a block of its cluster" : "a copy"),
                   0);
}

/// Passes on what the thread knows, and goes on.
void Machine::cluster_arrive(Stamp site) {
    if (current_->arrived_at_cluster)
        diverge("arrives at the barrier of its cluster at {} again, without cluster_wait between", site,
                {uint32_t(site)});
    current_->arrived_at_cluster = true;
    current_->cluster_phase = cluster_phase_;
    if (num_gone_ > 0)
        diverge("arrives at the barrier of its cluster at {}, but a thread of it has returned from the kernel", site,
                {uint32_t(site)});
    cluster_arrived_.join(*release());
    if (++num_at_cluster_ < num_threads()) return;
    num_at_cluster_ = 0;
    ++cluster_phase_;
    cluster_completed_ = std::make_shared<const Knowledge>(std::exchange(cluster_arrived_, {}));
    std::vector<uint32_t> waiting;
    for (uint32_t t = 0; t < num_threads(); ++t)
        if (threads_[t].wait == Wait::Cluster) waiting.push_back(t);
    for (uint32_t t : waiting) threads_[t].knowledge = joins_.join(threads_[t].knowledge, cluster_completed_);
    wake(waiting);
    if (tally_) tally_->flush();
}

void Machine::cluster_wait(Stamp site) {
    if (!std::exchange(current_->arrived_at_cluster, false))
        diverge("waits at the barrier of its cluster at {} without cluster_arrive before", site, {uint32_t(site)});
    if (current_->cluster_phase == cluster_phase_) {
        wait(Wait::Cluster, site);
        switch_to_scheduler();
        return;
    }
    learn(cluster_completed_);
}

}  // namespace tw::emulator

#include "runtime/emulator/barriers.h"

#include "runtime/emulator/fiber_stacks.h"
#include "runtime/emulator/machine.h"

namespace tw::emulator {
namespace {

uintptr_t address_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

constexpr size_t BarrierBytes = 8;

}  // namespace

std::string Machine::barrier_text(uintptr_t address) const {
    return fmt::format("the barrier at byte {} of shared memory", (address - memories_[0].base) % SharedWindow);
}

/// The thread may use it: it exists, and its beginning lies before.
TransactionBarrier& Machine::barrier_at(uintptr_t address, const char* verb, Stamp site) {
    auto found = barriers_.find(address);
    if (found == barriers_.end())
        misuse(address - memories_[0].base < num_blocks_together_ * SharedWindow
                   ? fmt::format("{} {}, where mbarrier_init has made none", verb, barrier_text(address))
                   : fmt::format("{} a barrier that is not in shared memory", verb),
               site);
    if (options_.check) check_access(address, BarrierBytes, AccessKind::Atomic, site);
    return found->second;
}

void Machine::mbarrier_init(void* barrier, int arrivals, Stamp site) {
    const uintptr_t address = address_of(barrier);
    if (arrivals < 1 || arrivals > MaxArrivals)
        misuse(fmt::format("makes a barrier for {} arrivals; it takes 1 to {}", arrivals, MaxArrivals), site);
    if (address - memories_[0].base >= num_blocks_together_ * SharedWindow)
        misuse("makes a barrier that is not in shared memory", site);
    if (barriers_.contains(address)) misuse(fmt::format("makes {} again", barrier_text(address)), site);
    access(barrier, BarrierBytes, AccessKind::Write, site);
    barriers_[address] = {.count = arrivals, .pending = arrivals, .initialised_by = running.thread};
}

void Machine::fence_mbarrier_init() {
    for (auto& [address, barrier] : barriers_)
        if (barrier.initialised_by == running.thread) barrier.fenced = true;
}

void Machine::require_fenced(uintptr_t address, Stamp site) {
    if (!barriers_.at(address).fenced)
        misuse(fmt::format("uses {} for what other proxies or blocks do, but nobody has called fence_mbarrier_init "
                           "after its mbarrier_init",
                           barrier_text(address)),
               site);
}

void Machine::complete_phase_if_done(uintptr_t address, TransactionBarrier& barrier, Stamp site) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    if (barrier.phase > barrier.seen)
        misuse(
            fmt::format("completes phase {} of {} before anybody has waited for phase {}: by their parity, who waits "
                        "cannot tell them apart",
                        barrier.phase, barrier_text(address), barrier.phase - 1),
            site);
    ++barrier.phase;
    barrier.pending = barrier.count;
    barrier.completed = std::make_shared<const Knowledge>(std::exchange(barrier.arrived, {}));
    if (tally_) tally_->count_barrier();
    for (uint32_t t = 0; t < num_threads(); ++t) {
        Thread& thread = threads_[t];
        if (thread.wait != Wait::Transactions || thread.barrier_address != address) continue;
        thread.knowledge = joins_.join(thread.knowledge, barrier.completed);
        barrier.seen = barrier.phase;
        wake({t});
    }
}

void Machine::arrive(uintptr_t address, TransactionBarrier& barrier, Stamp site) {
    if (barrier.pending == 0)
        misuse(fmt::format("arrives at {}, at which all {} of phase {} have arrived and {} bytes are to come",
                           barrier_text(address), barrier.count, barrier.phase, barrier.bytes),
               site);
    --barrier.pending;
    complete_phase_if_done(address, barrier, site);
}

void Machine::mbarrier_arrive(void* barrier, int rank, Stamp site) {
    uintptr_t address = address_of(barrier);
    if (rank >= 0) address = address_of(peer_shared(barrier, unsigned(rank), site));
    TransactionBarrier& there = barrier_at(address, "arrives at", site);
    const bool is_remote = rank >= 0 && unsigned(rank) != current_->state.cluster_rank;
    if (is_remote) {
        require_fenced(address, site);
        note_foreign_use(unsigned(rank), site);
    }
    auto known = release();
    if (rank >= 0) {
        // Relaxed, so that nothing has to be written back: says only that reads are over, and copies that it has seen.
        there.arrived.reads.join(known->reads);
        there.arrived.fenced_reads.join(known->fenced_reads);
        there.arrived.writes.join_agents(known->writes);
    } else {
        there.arrived.join(*known);
    }
    arrive(address, there, site);
    perhaps_let_others_run();
}

void Machine::mbarrier_expect_tx(void* barrier, unsigned bytes, Stamp site) {
    const uintptr_t address = address_of(barrier);
    TransactionBarrier& there = barrier_at(address, "expects bytes at", site);
    there.bytes += bytes;
    require_byte_count(address, there, site);
    there.arrived.join(*release());
    arrive(address, there, site);
    perhaps_let_others_run();
}

void Machine::require_byte_count(uintptr_t address, const TransactionBarrier& barrier, Stamp site) {
    if (barrier.bytes > MaxBytes || barrier.bytes < -MaxBytes)
        misuse(fmt::format("leaves {} bytes to come at {}; a barrier counts to {}", barrier.bytes,
                           barrier_text(address), MaxBytes),
               site);
}

/// By an asynchronous operation, whose accesses are now to be seen by who waits.
void Machine::complete_bytes(uintptr_t address, int64_t bytes) {
    TransactionBarrier& barrier = barriers_.at(address);
    const AsyncOperation& operation = *operations_.in_slot(running.thread);
    note_foreign_use(uint32_t((address - memories_[0].base) / SharedWindow), operation.site);
    barrier.bytes -= bytes;
    require_byte_count(address, barrier, operation.site);
    barrier.arrived.add(operation.slot, operation.clock, num_threads());
    barrier.arrived.reads.join(operation.knowledge->reads);  // what lay before it was over when it wrote
    barrier.arrived.fenced_reads.join(operation.knowledge->fenced_reads);
    complete_phase_if_done(address, barrier, operation.site);
}

void Machine::mbarrier_wait(void* barrier, unsigned phase, Stamp site) {
    const uintptr_t address = address_of(barrier);
    TransactionBarrier& there = barrier_at(address, "waits at", site);
    if (phase > 1)
        misuse(fmt::format("waits for phase {} of {}; the parity is 0 or 1", phase, barrier_text(address)), site);
    if (!there.is_complete(phase)) {
        current_->barrier_address = address;
        current_->barrier_phase = phase;
        wait(Wait::Transactions, site);
        switch_to_scheduler();
        return;
    }
    there.seen = there.phase;
    if (there.completed) learn(there.completed);
    perhaps_let_others_run();
}

void Machine::fence_proxy_async() {
    auto known = std::make_shared<Knowledge>(*current_->knowledge);
    known->writes.set(running.thread, current_->clock, num_threads());
    known->reads.set(running.thread, current_->clock, num_threads());
    known->fenced.join(known->writes);
    known->fenced_reads.set(running.thread, current_->clock, num_threads());
    current_->knowledge = std::move(known);
    advance_clock();
}

}  // namespace tw::emulator

#include "runtime/emulator/units/mbarriers.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

namespace tw::emulator {
namespace {

uintptr_t address_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

constexpr size_t BarrierBytes = 8;
constexpr int MaxArrivals = (1 << 20) - 1;
constexpr int64_t MaxBytes = (1 << 20) - 1;

}  // namespace

std::string Mbarriers::text_of(uintptr_t address) const {
    return fmt::format("the barrier at byte {} of shared memory", core_.memories.offset_in_block(address));
}

/// The thread may use it: it exists, and its beginning lies before.
TransactionBarrier& Mbarriers::at(uintptr_t address, const char* verb, Stamp site) {
    auto found = barriers_.find(address);
    if (found == barriers_.end())
        misuse(core_.memories.is_shared(address)
                   ? fmt::format("{} {}, where mbarrier_init has made none", verb, text_of(address))
                   : fmt::format("{} a barrier that is not in shared memory", verb),
               site);
    if (core_.options.check) check_access(address, BarrierBytes, AccessKind::Atomic, site);
    return found->second;
}

void Mbarriers::init(void* barrier, int arrivals, Stamp site) {
    const uintptr_t address = address_of(barrier);
    if (arrivals < 1 || arrivals > MaxArrivals)
        misuse(fmt::format("makes a barrier for {} arrivals; it takes 1 to {}", arrivals, MaxArrivals), site);
    if (!core_.memories.is_shared(address)) misuse("makes a barrier that is not in shared memory", site);
    if (barriers_.contains(address)) misuse(fmt::format("makes {} again", text_of(address)), site);
    access(barrier, BarrierBytes, AccessKind::Write, site);
    barriers_[address] = {.count = arrivals, .pending = arrivals, .initialised_by = running.thread};
}

void Mbarriers::fence_init() {
    for (auto& [address, barrier] : barriers_)
        if (barrier.initialised_by == running.thread) barrier.fenced = true;
}

void Mbarriers::require_fenced(uintptr_t address, const char* verb, Stamp site) {
    require_fence(address, at(address, verb, site), site);
}

void Mbarriers::require_fence(uintptr_t address, const TransactionBarrier& barrier, Stamp site) {
    if (!barrier.fenced)
        misuse(fmt::format("uses {} for what other proxies or blocks do, but nobody has called fence_mbarrier_init "
                           "after its mbarrier_init",
                           text_of(address)),
               site);
}

void Mbarriers::complete_phase_if_done(uintptr_t address, TransactionBarrier& barrier, Stamp site) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    if (barrier.phase > barrier.seen)
        misuse(
            fmt::format("completes phase {} of {} before anybody has waited for phase {}: by their parity, who waits "
                        "cannot tell them apart",
                        barrier.phase, text_of(address), barrier.phase - 1),
            site);
    ++barrier.phase;
    barrier.pending = barrier.count;
    barrier.completed = std::make_shared<const Knowledge>(std::exchange(barrier.arrived, {}));
    if (core_.tally) core_.tally->count_barrier();
    for (uint32_t t = 0; t < threads_.count(); ++t) {
        const Thread& thread = threads_[t];
        if (thread.wait != Wait::Transactions || thread.barrier_address != address) continue;
        core_.order.learn(t, barrier.completed);
        barrier.seen = barrier.phase;
        threads_.wake({t});
    }
}

void Mbarriers::arrive_at(uintptr_t address, TransactionBarrier& barrier, Stamp site) {
    if (barrier.pending == 0)
        misuse(fmt::format("arrives at {}, at which all {} of phase {} have arrived and {} bytes are to come",
                           text_of(address), barrier.count, barrier.phase, barrier.bytes),
               site);
    --barrier.pending;
    complete_phase_if_done(address, barrier, site);
}

void Mbarriers::arrive(void* barrier, int rank, Stamp site) {
    uintptr_t address = address_of(barrier);
    if (rank >= 0) address = address_of(cluster_.peer_shared(barrier, unsigned(rank), site));
    TransactionBarrier& there = at(address, "arrives at", site);
    const bool is_remote = rank >= 0 && unsigned(rank) != threads_.current().state.cluster_rank;
    if (is_remote) {
        require_fence(address, there, site);
        cluster_.note_foreign_use(unsigned(rank), site);
    }
    auto known = core_.order.release();
    if (rank >= 0) {
        // Relaxed, so that nothing has to be written back: says only that reads are over, and copies that it has seen.
        there.arrived.reads.join(known->reads);
        there.arrived.fenced_reads.join(known->fenced_reads);
        there.arrived.writes.join_agents(known->writes);
    } else {
        there.arrived.join(*known);
    }
    arrive_at(address, there, site);
    core_.perhaps_let_others_run();
}

void Mbarriers::expect_tx(void* barrier, unsigned bytes, Stamp site) {
    const uintptr_t address = address_of(barrier);
    TransactionBarrier& there = at(address, "expects bytes at", site);
    there.bytes += bytes;
    require_byte_count(address, there, site);
    there.arrived.join(*core_.order.release());
    arrive_at(address, there, site);
    core_.perhaps_let_others_run();
}

void Mbarriers::require_byte_count(uintptr_t address, const TransactionBarrier& barrier, Stamp site) {
    if (barrier.bytes > MaxBytes || barrier.bytes < -MaxBytes)
        misuse(fmt::format("leaves {} bytes to come at {}; a barrier counts to {}", barrier.bytes, text_of(address),
                           MaxBytes),
               site);
}

void Mbarriers::complete_bytes(uintptr_t address, int64_t bytes) {
    TransactionBarrier& barrier = barriers_.at(address);
    const AsyncOperation& operation = *core_.operations.in_slot(running.thread);
    cluster_.note_foreign_use(core_.memories.rank_of(address), operation.site);
    barrier.bytes -= bytes;
    require_byte_count(address, barrier, operation.site);
    barrier.arrived.add(operation.slot, operation.clock, threads_.count());
    barrier.arrived.reads.join(operation.knowledge->reads);  // what lay before it was over when it wrote
    barrier.arrived.fenced_reads.join(operation.knowledge->fenced_reads);
    complete_phase_if_done(address, barrier, operation.site);
}

void Mbarriers::wait(void* barrier, unsigned phase, Stamp site) {
    const uintptr_t address = address_of(barrier);
    TransactionBarrier& there = at(address, "waits at", site);
    if (phase > 1) misuse(fmt::format("waits for phase {} of {}; the parity is 0 or 1", phase, text_of(address)), site);
    if (!there.is_complete(phase)) {
        threads_.current().barrier_address = address;
        threads_.current().barrier_phase = phase;
        threads_.wait(Wait::Transactions, site);
        threads_.let_others_run();
        return;
    }
    there.seen = there.phase;
    if (there.completed) core_.order.learn(there.completed);
    core_.perhaps_let_others_run();
}

std::string Mbarriers::waiting_text(const Thread& thread) const {
    const TransactionBarrier& barrier = barriers_.at(thread.barrier_address);
    return fmt::format("for phase {} of {}, whose phase {} has {} of {} arrivals and {} bytes to come",
                       thread.barrier_phase, text_of(thread.barrier_address), barrier.phase,
                       barrier.count - barrier.pending, barrier.count, barrier.bytes);
}

}  // namespace tw::emulator

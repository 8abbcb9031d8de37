// Barriers in shared memory that count arrivals and bytes (mbarrier).
#pragma once
#include <map>
#include <string>

#include "runtime/emulator/units/cluster.h"

namespace tw::emulator {

struct TransactionBarrier {
    int count = 0;        // arrivals of a phase
    int pending = 0;      // that are missing
    int64_t bytes = 0;    // expected and not yet come; negative while more has come than was expected
    uint32_t phase = 0;   // the number of those that are complete
    uint32_t seen = 0;    // of them, up to the last that a thread has waited for
    bool fenced = false;  // asynchronous operations and other blocks may use it
    uint32_t initialised_by = 0;
    Knowledge arrived = {};           // of the threads that have, in this phase
    KnowledgePointer completed = {};  // of those in the last phase

    bool is_complete(unsigned parity) const { return (phase & 1) != parity; }
};

class Mbarriers {
public:
    Mbarriers(Core& core, Cluster& cluster) : core_(core), threads_(core.threads), cluster_(cluster) {}
    void begin() { barriers_.clear(); }  // a cluster

    // What hooks do for the running thread.
    void init(void* barrier, int arrivals, Stamp site);
    void fence_init();
    void arrive(void* barrier, int rank, Stamp site);
    void expect_tx(void* barrier, unsigned bytes, Stamp site);
    void wait(void* barrier, unsigned phase, Stamp site);

    /// What other proxies or blocks do may use the barrier, which has been made before.
    void require_fenced(uintptr_t address, const char* verb, Stamp site);

    /// The asynchronous operation that runs has brought its bytes, for whom waits at the barrier.
    void complete_bytes(uintptr_t address, int64_t bytes);

    /// "for phase 1 of the barrier at byte 512 of shared memory, whose phase 1 has 1 of 2 arrivals and ..."
    std::string waiting_text(const Thread& thread) const;

private:
    std::string text_of(uintptr_t address) const;
    TransactionBarrier& at(uintptr_t address, const char* verb, Stamp site);
    void require_fence(uintptr_t address, const TransactionBarrier& barrier, Stamp site);
    void require_byte_count(uintptr_t address, const TransactionBarrier& barrier, Stamp site);
    void arrive_at(uintptr_t address, TransactionBarrier& barrier, Stamp site);
    void complete_phase_if_done(uintptr_t address, TransactionBarrier& barrier, Stamp site);

    Core& core_;
    Threads& threads_;
    Cluster& cluster_;
    std::map<uintptr_t, TransactionBarrier> barriers_;
};

}  // namespace tw::emulator

// Blocks that run together: their barrier, and the addresses of each other's shared memory.
#pragma once
#include <map>
#include <vector>

#include "runtime/emulator/threads/core.h"
#include "runtime/emulator/threads/report.h"

namespace tw::emulator {

class Cluster {
public:
    explicit Cluster(Core& core) : core_(core), threads_(core.threads) {}
    void begin();

    // What hooks do for the running thread.
    void arrive(Stamp site);
    void wait(Stamp site);
    void* peer_shared(void* own, unsigned rank, Stamp site);

    /// Whoever runs accesses this shared memory.
    void note_use(const Memory& shared, Stamp site);

    /// An access by somebody who is not of that block. A block's shared memory ends with its last thread:
    /// copies and threads of other blocks that use it must do so before.
    void note_foreign_use(uint32_t rank, Stamp site);

    /// By the last thread of a block.
    void require_no_foreign_use();

private:
    struct Arrival {           // of a thread
        bool arrived = false;  // and has not waited since
        uint32_t phase = 0;
    };

    Core& core_;
    Threads& threads_;
    std::vector<std::map<uint32_t, uint32_t>> used_by_;  // by rank: clocks of copies and threads of other blocks
    std::vector<Arrival> arrivals_;
    Knowledge arrived_;
    KnowledgePointer completed_;
    uint32_t phase_ = 0, num_arrived_ = 0;
};

}  // namespace tw::emulator

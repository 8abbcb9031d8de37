// Where the threads of a block, a warp or a warpgroup wait for each other.
#pragma once
#include <vector>

#include "runtime/emulator/threads/core.h"
#include "runtime/emulator/threads/report.h"

namespace tw::emulator {

class ThreadBarriers {
public:
    explicit ThreadBarriers(Core& core) : core_(core), threads_(core.threads) {}
    void begin();  // a cluster

    // What hooks do for the running thread.
    void sync_threads(Stamp site);
    void sync_named(int id, int expected, Stamp site);
    void arrive_named(int id, int expected, Stamp site);
    void sync_warp(Stamp site);
    uint64_t shuffle(uint64_t value, int source_lane, Stamp site);
    bool elect_one(Stamp site);

    /// The running thread waits for the others of its warp, or warpgroup, at the same line. The last one is told so; it
    /// wakes the others, and all of them let others run.
    bool arrive_at_warp(Wait kind, Stamp site);
    bool arrive_at_warpgroup(const char* name, Stamp site);

    /// The lanes of the warp are all here.
    void converge(Stamp site);

    /// The running thread returns from the kernel: nobody waits for it.
    void require_nobody_waits();

    /// All threads of the block have returned: nobody has come to a named barrier in vain.
    void require_none_is_left(uint32_t rank);

    /// Threads that the named barrier of the block takes now.
    int expected_at(uint32_t rank, int id) const { return blocks_[rank].named[id].expected; }

private:
    struct NamedBarrier {
        int expected = 0;
        std::vector<uint32_t> arrived;  // waiting
        std::vector<uint32_t> told;     // arrived, without waiting
        Knowledge passed_on;            // by those
        Stamp told_at = 0;
        std::vector<uint32_t> met;  // those who met here last, the first of them at this clock
        uint32_t met_clock = 0;
    };
    struct Block {
        unsigned num_arrived = 0;  // at __syncthreads
        NamedBarrier named[16];
    };
    struct Shuffled {
        uint64_t value = 0;  // what the lane gives, then what it gets
        int source_lane = 0;
    };

    NamedBarrier& named_barrier(int id, int expected, Stamp site);
    void complete(int id, NamedBarrier& barrier, Stamp site);
    void require_order_with_last(const NamedBarrier& barrier, int id, Stamp site);
    void require_same_place(const Thread& first, Stamp site);

    Core& core_;
    Threads& threads_;
    std::vector<Block> blocks_;
    std::vector<unsigned> arrived_in_warp_;
    std::vector<Shuffled> shuffled_;  // by thread
};

}  // namespace tw::emulator

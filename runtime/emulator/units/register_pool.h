// Registers that warpgroups pass on to each other (setmaxnreg).
#pragma once
#include <vector>

#include "runtime/emulator/units/register_counts.h"
#include "runtime/emulator/units/thread_barriers.h"

namespace tw::emulator {

class RegisterPool {
public:
    RegisterPool(Core& core, ThreadBarriers& barriers);
    void begin();  // a cluster

    /// setmaxnreg by the running thread's warpgroup.
    void set(int count, bool grows, Stamp site);

    /// Registers of each of its threads now, and when the kernel began.
    int of_warpgroup(uint32_t warpgroup) const { return registers_[warpgroup]; }
    int at_entry() const { return registers_at_entry(threads_.per_block(), blocks_); }

private:
    void give();

    Threads& threads_;
    ThreadBarriers& barriers_;
    const unsigned blocks_;       // that a multiprocessor has room for, as the launch bounds say
    std::vector<int> registers_;  // of a thread, by warpgroup
    std::vector<int> wanted_;     // likewise
    std::vector<int> free_;       // by block: what setmaxnreg has taken and not yet given
};

}  // namespace tw::emulator

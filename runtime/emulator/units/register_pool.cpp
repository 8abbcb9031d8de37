#include "runtime/emulator/units/register_pool.h"

#include <fmt/format.h>

namespace tw::emulator {

RegisterPool::RegisterPool(Core& core, ThreadBarriers& barriers)
    : threads_(core.threads),
      barriers_(barriers),
      blocks_(std::max(core.module.attributes(core.launch.kernel).blocks, 1u)) {}

void RegisterPool::begin() {
    registers_.assign(threads_.num_warpgroups(), at_entry());
    wanted_ = registers_;
    free_.assign(threads_.count() / threads_.per_block(), 0);  // the pool is what the threads had
}

void RegisterPool::set(int count, bool grows, Stamp site) {
    const uint32_t group = running.thread / WarpgroupThreads;
    const char* name = grows ? "setmaxnreg_inc" : "setmaxnreg_dec";
    const int own = registers_[group];
    if (grows ? count < own : count > own)
        misuse(fmt::format("calls {}<{}> with {} registers; under __launch_bounds__({}, {}) a kernel begins with {}",
                           name, count, own, threads_.per_block(), blocks_, at_entry()),
               site);
    wanted_[group] = count;
    if (barriers_.arrive_at_warpgroup(name, site)) {
        for (uint32_t t : threads_.of_warpgroup(group)) threads_[t].wait = Wait::Registers;
        give();
    }
    threads_.let_others_run();
}

/// To the warpgroups that wait for them, while there are enough.
void RegisterPool::give() {
    for (uint32_t group = 0; (group + 1) * WarpgroupThreads <= threads_.count(); ++group) {
        const uint32_t first = group * WarpgroupThreads;
        if (threads_[first].wait != Wait::Registers) continue;
        int& free = free_[threads_.rank_of(first)];
        const int more = (wanted_[group] - registers_[group]) * int(WarpgroupThreads);
        if (more > free) continue;
        free -= more;
        registers_[group] = wanted_[group];
        threads_.wake(threads_.of_warpgroup(group));
        if (more < 0) return give();
    }
}

}  // namespace tw::emulator

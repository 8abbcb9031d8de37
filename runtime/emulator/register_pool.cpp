// Registers that warpgroups pass on to each other (setmaxnreg), and the lane that a warp elects.
#include "runtime/emulator/register_pool.h"

#include "runtime/emulator/machine.h"
#include "runtime/emulator/tensor_core.h"

namespace tw::emulator {
namespace {

constexpr int WarpgroupThreads = 128;

/// Registers of a thread that a product holds.
int registers_of(const emulated::WgmmaCall& call) {
    const int accumulators = call.n / 2, operands = 64 * call.k * int(bytes_of(call.a_type)) / 4 / WarpgroupThreads;
    return accumulators + (call.a_registers ? operands : 0);
}

}  // namespace

void Machine::begin_registers() {
    const int entry = registers_at_entry(launch_.threads);
    registers_of_warpgroup_.assign((num_threads() + WarpgroupThreads - 1) / WarpgroupThreads, entry);
    for (Block& block : blocks_) block.free_registers = 0;  // the pool is what the threads had
}

void Machine::set_registers(int count, bool grows, Stamp site) {
    current_->registers_wanted = count;
    const char* name = grows ? "setmaxnreg_inc" : "setmaxnreg_dec";
    int& own = registers_of_warpgroup_[running.thread / WarpgroupThreads];
    if (grows ? count < own : count > own)
        misuse(fmt::format("calls {}<{}> with {} registers; under __launch_bounds__({}) a kernel begins with {}", name,
                           count, own, launch_.threads, registers_at_entry(launch_.threads)),
               site);
    if (arrive_at_warpgroup(name, site)) {
        std::vector<uint32_t> all(WarpgroupThreads);
        for (uint32_t i = 0; i < WarpgroupThreads; ++i)
            all[i] = running.thread / WarpgroupThreads * WarpgroupThreads + i;
        for (uint32_t t : all) threads_[t].wait = Wait::Registers;
        give_registers();
    }
    switch_to_scheduler();
}

/// Accumulators and operands in registers, of this product and of those under way, fit in what setmaxnreg has left,
/// beside what any code needs.
void Machine::require_product_fits(const emulated::WgmmaCall& call, Stamp site) {
    const int own = registers_of_warpgroup_[running.thread / WarpgroupThreads];
    int held = registers_of(call);
    for (const Registers& others : current_->registers) {
        const bool is_own = others.begin == reinterpret_cast<uintptr_t>(call.d) ||
                            others.begin == reinterpret_cast<uintptr_t>(call.a_registers);
        if (others.last && !is_own) held += int(others.bytes) / 4;
    }
    if (own >= registers_at_entry(launch_.threads) || held + LeastRegisters <= own) return;
    misuse(fmt::format(
               "multiplies with {} registers a thread, of which products hold {}; other values, addresses and counters "
               "need {}, the least that setmaxnreg leaves",
               own, held, LeastRegisters),
           site);
}

/// To the warpgroups that wait for them, while there are enough.
void Machine::give_registers() {
    for (uint32_t first = 0; first + WarpgroupThreads <= num_threads(); first += WarpgroupThreads) {
        if (threads_[first].wait != Wait::Registers) continue;
        int& own = registers_of_warpgroup_[first / WarpgroupThreads];
        int& free = blocks_[block_of(first)].free_registers;
        const int more = (threads_[first].registers_wanted - own) * WarpgroupThreads;
        if (more > free) continue;
        free -= more;
        own = threads_[first].registers_wanted;
        std::vector<uint32_t> all(WarpgroupThreads);
        for (uint32_t i = 0; i < WarpgroupThreads; ++i) all[i] = first + i;
        wake(all);
        if (more < 0) return give_registers();
    }
}

/// Any lane, but always the same: a kernel that counts on the first one is wrong.
bool Machine::elect_one(Stamp site) {
    converge(site);
    return running.lane == (options_.seed * 7 + running.warp * 5) % warps_[running.warp].lanes;
}

}  // namespace tw::emulator

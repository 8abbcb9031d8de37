// Products by warpgroups: asynchronous, in order, their operands in shared memory and registers (wgmma).
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "runtime/emulator/units/register_pool.h"

namespace tw::emulator {

class WarpgroupOperation;

class Wgmma {
public:
    Wgmma(Core& core, ThreadBarriers& barriers, const RegisterPool& pool)
        : core_(core), threads_(core.threads), barriers_(barriers), pool_(pool) {}
    void begin();  // a cluster

    // What hooks do for the running thread.
    void issue(const emulated::WgmmaCall& call, Stamp site);
    void fence(Stamp site);
    void commit(Stamp site);
    void wait(int pending, Stamp site);

    /// The kernel's own use of registers that the running thread has passed to wgmma.
    void touch_registers(uintptr_t address, size_t bytes, AccessKind kind, Stamp site);

private:
    using Group = std::vector<std::shared_ptr<WarpgroupOperation>>;

    /// What a thread has passed to wgmma.
    struct Registers {
        uintptr_t begin = 0;
        size_t bytes = 0;
        bool is_result = false;                    // or an operand
        bool touched = false;                      // otherwise used since the last wgmma_fence or wgmma on them
        std::shared_ptr<WarpgroupOperation> last;  // on them that has not been waited for
    };

    struct OfThread {
        Group open;                // products since the last wgmma_commit
        std::deque<Group> groups;  // not waited for
        std::vector<Registers> registers;
        emulated::WgmmaCall call{};
        int num_fences = 0;
    };

    OfThread& own() { return of_thread_[running.thread]; }
    void require_descriptor(uint64_t bits, const char* operand, Stamp site);
    Registers* find_registers(const void* begin);
    void require_fenced(const void* begin, bool may_be_in_flight, Stamp site);
    void require_fits(const emulated::WgmmaCall& call, Stamp site);
    std::shared_ptr<Knowledge> known_by_all(const emulated::WgmmaCall& call, Stamp site);
    void start(Stamp site);
    void hold_registers(const void* begin, size_t bytes, bool is_result, std::shared_ptr<WarpgroupOperation> operation);
    void finish(const std::shared_ptr<WarpgroupOperation>& operation);

    Core& core_;
    Threads& threads_;
    ThreadBarriers& barriers_;
    const RegisterPool& pool_;
    std::vector<OfThread> of_thread_;
    std::map<uint32_t, std::shared_ptr<AsyncOperation>> last_;  // by warpgroup
};

}  // namespace tw::emulator

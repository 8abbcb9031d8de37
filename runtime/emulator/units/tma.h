// Bulk copies of boxes between global and shared memory (TMA).
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "runtime/emulator/units/mbarriers.h"

namespace tw::emulator {

class TmaStore;
struct TensorMapBits;

class Tma {
public:
    Tma(Core& core, Mbarriers& mbarriers) : core_(core), mbarriers_(mbarriers) {}
    void begin() { stores_.assign(core_.threads.count(), {}); }  // a cluster

    // What hooks do for the running thread.
    void issue(const emulated::TmaCall& call, Stamp site);
    void store_commit();
    void store_wait(int pending, bool only_read);

    /// The running thread returns from the kernel. The block's shared memory goes with its threads: none may still be
    /// read.
    void require_stores_read();

private:
    /// A thread's stores since the last tma_store_commit, and groups not waited for.
    struct StoreQueue {
        std::vector<std::shared_ptr<TmaStore>> open;
        std::deque<std::vector<std::shared_ptr<TmaStore>>> groups;
        size_t num_read = 0;  // of the groups, the first that tma_store_wait_read has waited for
    };

    void load(const emulated::TmaCall& call, const TensorMapBits& map, Stamp site);
    void store(const emulated::TmaCall& call, const TensorMapBits& map, Stamp site);
    void require_tile_place(const void* shared, const char* name, Stamp site);

    Core& core_;
    Mbarriers& mbarriers_;
    std::vector<StoreQueue> stores_;  // by thread
};

}  // namespace tw::emulator

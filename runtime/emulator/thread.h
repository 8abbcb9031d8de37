// A thread of a kernel: where it waits, what it knows, and what it has under way.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include <boost/context/detail/fcontext.hpp>

#include "device/cpu/hooks.h"
#include "runtime/emulator/copy_queue.h"
#include "runtime/emulator/knowledge.h"
#include "runtime/emulator/matrix_call.h"

namespace tw::emulator {

/// Where a thread is.
enum class Wait {
    Ready,
    Block,
    Named,
    Transactions,
    Cluster,
    Warpgroup,
    Registers,
    WarpBarrier,
    Shuffle,
    Matrix,
    Gone
};

/// Whether it waits for the other lanes of its warp.
constexpr bool is_of_warp(Wait wait) {
    return wait == Wait::WarpBarrier || wait == Wait::Shuffle || wait == Wait::Matrix;
}

class TmaStore;

class WarpgroupOperation;

/// Of one thread: products since the last wgmma_commit, and groups not waited for.
struct ProductQueue {
    std::vector<std::shared_ptr<WarpgroupOperation>> open;
    std::deque<std::vector<std::shared_ptr<WarpgroupOperation>>> groups;
};

/// Registers of one thread that it has passed to wgmma.
struct Registers {
    uintptr_t begin = 0;
    size_t bytes = 0;
    bool is_result = false;                    // or an operand
    bool touched = false;                      // otherwise used since the last wgmma_fence or wgmma on them
    std::shared_ptr<WarpgroupOperation> last;  // on them that has not been waited for
};

/// Of one thread: stores since the last tma_store_commit, and groups not waited for.
struct StoreQueue {
    std::vector<std::shared_ptr<TmaStore>> open;
    std::deque<std::vector<std::shared_ptr<TmaStore>>> groups;
    size_t num_read = 0;  // of the groups, the first that tma_store_wait_read has waited for
};

struct Thread {
    boost::context::detail::fcontext_t context = nullptr;
    emulated::ThreadState state;
    Wait wait = Wait::Ready;
    uint32_t site = 0;   // of the call that waits
    int barrier = 0;     // of a named one
    uint64_t value = 0;  // of a shuffle: what the lane gives, then what it gets
    int source_lane = 0;
    uintptr_t barrier_address = 0;  // of one that counts bytes
    unsigned barrier_phase = 0;
    bool arrived_at_cluster = false;
    uint32_t cluster_phase = 0;
    uint32_t clock = 1;
    KnowledgePointer knowledge;
    CopyQueue copies;
    StoreQueue stores;
    ProductQueue products;
    std::vector<Registers> registers;
    emulated::WgmmaCall wgmma{};
    int num_wgmma_fences = 0, registers_wanted = 0;
    MatrixCall matrix;
};

}  // namespace tw::emulator

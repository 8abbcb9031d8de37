// A thread of a kernel: where it is, and what it knows.
#pragma once
#include <string>

#include <boost/context/detail/fcontext.hpp>

#include "device/cpu/hooks.h"
#include "runtime/emulator/memory/knowledge.h"

namespace tw::emulator {

/// What a thread waits for.
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

/// "__syncthreads", "barrier 3": in what it waits.
std::string call_text(Wait wait, int barrier = 0);

struct Thread {
    boost::context::detail::fcontext_t context = nullptr;
    emulated::ThreadState state;
    Wait wait = Wait::Ready;
    uint32_t site = 0;              // of the call that waits
    int barrier = 0;                // that it waits at, a named one
    uintptr_t barrier_address = 0;  // or one that counts bytes
    unsigned barrier_phase = 0;
    uint32_t clock = 1;
    KnowledgePointer knowledge;
    bool has_registers = false;  // that wgmma knows
};

}  // namespace tw::emulator

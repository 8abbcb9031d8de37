// Memory that all launches of a process use, one after another: the fibers' stacks and the block's shared memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw::emulator {

/// Addresses that belong to shared memory, wherever a block's ends: twice what any GPU has. Those of the blocks of a
/// cluster lie in a row.
constexpr size_t SharedWindow = 1 << 19;

class FiberStacks {
public:
    /// With at least that many stacks.
    static FiberStacks& get(unsigned num_threads);

    struct Stack {
        uintptr_t begin;
        void* top;
        size_t bytes;
    };
    Stack stack(unsigned thread) const;
    unsigned char* shared_windows() const { return shared_; }  // one for each block of a cluster

private:
    FiberStacks();
    void guard(unsigned num_threads);
    unsigned char* stacks_ = nullptr;
    unsigned char* shared_ = nullptr;
    unsigned num_guarded_ = 0;
};

}  // namespace tw::emulator

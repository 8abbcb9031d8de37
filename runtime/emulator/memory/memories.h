// The memories that a launch may use.
#pragma once
#include <vector>

#include "runtime/emulator/host/launch.h"
#include "runtime/emulator/memory/fiber_stacks.h"
#include "runtime/emulator/memory/running.h"

namespace tw::emulator {

/// A window of shared memory for each block of a cluster, by rank, then the launch's regions.
class Memories {
public:
    Memories(const Launch& launch, unsigned char* windows, unsigned num_rows);

    /// The memory that holds the address, or to which it belongs as an overrun of shared memory; nullptr if none. What
    /// lies near the running thread's accesses follows.
    Memory* find(uintptr_t address);

    unsigned num_blocks() const { return num_blocks_; }  // that run together
    Memory& shared(uint32_t rank) { return all_[rank]; }
    const NearMemory& near_shared(uint32_t rank) const { return near_[rank]; }
    uint32_t rank_of(const Memory& shared) const { return uint32_t(&shared - all_.data()); }
    uint32_t rank_of(uintptr_t shared) const { return uint32_t((shared - all_[0].base) / SharedWindow); }
    uintptr_t offset_in_block(uintptr_t shared) const { return (shared - all_[0].base) % SharedWindow; }

    /// Whether the address is in the shared memory of any block of the cluster, or of this one.
    bool is_shared(uintptr_t address) const { return address - all_[0].base < num_blocks_ * SharedWindow; }
    bool is_shared_of(uint32_t rank, uintptr_t address) const { return address - all_[rank].base < SharedWindow; }

    /// NaN in every float type, in all of shared memory.
    void forget_shared();

    std::vector<Memory>& all() { return all_; }
    const std::vector<Memory>& all() const { return all_; }

private:
    unsigned num_blocks_;
    size_t shared_bytes_;
    std::vector<Memory> all_;
    std::vector<NearMemory> near_;
};

}  // namespace tw::emulator

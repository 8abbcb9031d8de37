#include "runtime/emulator/memory/memories.h"

#include <cstring>

namespace tw::emulator {

Memories::Memories(const Launch& launch, unsigned char* windows, unsigned num_rows)
    : num_blocks_(launch.cluster), shared_bytes_(launch.shared_bytes) {
    all_.reserve(launch.regions.size() + num_blocks_);
    for (unsigned rank = 0; rank < num_blocks_; ++rank) {
        all_.emplace_back(reinterpret_cast<uintptr_t>(windows + rank * SharedWindow), launch.shared_bytes,
                          "shared memory", true, true, false, num_rows);
        near_.emplace_back(all_.back());
    }
    for (const Region& region : launch.regions)
        all_.emplace_back(reinterpret_cast<uintptr_t>(region.base), region.bytes, region.name, false, region.writable,
                          region.initialised, num_rows);
}

Memory* Memories::find(uintptr_t address) {
    if (is_shared(address)) return &all_[rank_of(address)];
    for (size_t i = num_blocks_; i < all_.size(); ++i) {
        Memory& memory = all_[i];
        if (address - memory.base >= memory.bytes) continue;
        if (memory.base % 4 == 0 && running.knowledge->previous_is_over) running.region = NearMemory(memory);
        return &memory;
    }
    return nullptr;
}

void Memories::forget_shared() {
    for (unsigned rank = 0; rank < num_blocks_; ++rank)
        std::memset(reinterpret_cast<void*>(all_[rank].base), 0xff, shared_bytes_);
}

}  // namespace tw::emulator

// Counts what warps ask of the memory.
#pragma once
#include <unordered_map>
#include <vector>

#include "runtime/emulator/host/launch.h"
#include "runtime/emulator/memory/history.h"

namespace tw::emulator {

class Module;

/// Collects accesses of single lanes and joins the i-th ones of a warp at one place to requests. Threads do not run in
/// step; so addresses are kept until all threads meet.
class Tally {
public:
    explicit Tally(unsigned num_threads) : num_threads_(num_threads) {}

    void add(const Memory& memory, uintptr_t address, size_t bytes, AccessKind kind, uint32_t site, uint32_t thread);
    void flush();  // all threads of the block have met, or it has ended
    void count_box(uint64_t bytes) { total_.box_bytes += bytes; }
    void count_barrier() { ++total_.barriers; }
    void count_warp_operation() { ++total_.warp_operations; }
    Statistics finish(const Module& module);

private:
    struct Key {
        uint32_t site;
        bool writes;
        const Memory* memory;
        size_t bytes;
        bool operator==(const Key&) const = default;
    };
    struct Hash {
        size_t operator()(const Key& key) const {
            return (key.site * 31 + key.bytes * 2 + key.writes) ^ reinterpret_cast<size_t>(key.memory);
        }
    };
    struct Site {
        Statistics::Site counts;
        std::vector<std::vector<uintptr_t>> addresses;  // [thread][i] of the accesses since the last flush
    };
    void count_requests(Site& site, unsigned warp);

    unsigned num_threads_;
    std::unordered_map<Key, Site, Hash> sites_;
    Statistics total_;
};

/// How often the banks of shared memory are passed for a request: in each pass, each of 32 banks serves one 4-byte
/// word, to all lanes that want it. Accesses of 8 bytes go by half warps, of 16 by quarters.
uint64_t count_wavefronts(const std::vector<uintptr_t>& addresses, size_t bytes);

/// How many 32-byte sectors of global memory a request touches.
uint64_t count_sectors(const std::vector<uintptr_t>& addresses, size_t bytes);

}  // namespace tw::emulator

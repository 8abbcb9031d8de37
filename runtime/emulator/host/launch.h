// What is launched, and what is told of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tw::emulator {

/// Memory that a kernel may use. Regions do not overlap. Nothing behind or before them is touched: what would be is a
/// finding.
struct Region {
    void* base = nullptr;
    size_t bytes = 0;
    std::string name = {};
    bool writable = true;
    bool initialised = true;  // false: to read a byte before it is written is a finding
};

struct Launch {
    std::string kernel;
    unsigned grid[3] = {1, 1, 1};
    unsigned threads = 1;               // of a block, 1 to 1024
    unsigned cluster = 1;               // blocks, neighbours in x, that run together
    size_t shared_bytes = 0;            // dynamic shared memory of a block
    bool starts_early = false;          // launches before may still run, until the kernel has waited for them
    std::vector<void*> arguments = {};  // where the value of each parameter is
    std::vector<Region> regions = {};
};

struct Options {
    uint64_t seed = 0;                     // of the order of blocks and threads
    bool check = true;                     // false: accesses are not looked at, barriers and crashes still are
    bool statistics = false;               // fill Report::statistics; slow
    uint64_t step_limit = 20'000'000'000;  // reported accesses and switches of threads
    double seconds_limit = 30;
};

/// One broken rule.
struct Finding {
    enum class Kind {
        Race,           // two threads, one location, at least one writes, no barrier between
        Uninitialised,  // read before written
        OutOfBounds,    // in no region and not in shared memory
        ReadOnly,       // written though not writable
        InFlight,       // touched while an asynchronous copy to it has not been waited for
        Unfenced,       // an asynchronous operation meets a thread's write, or overwrites what it read, without
                        // fence_proxy_async between
        Deadlock,       // every thread waits
        Divergence,     // threads of a warp or block do not meet where they must
        Overflow,       // signed overflow, or a shift by more than the width
        Misuse,         // an operand that a primitive does not take
        Misaligned,     // an address that is no multiple of the access's size
        StepLimit,      // ran past step_limit or seconds_limit
        Crash,          // SIGSEGV, SIGFPE and the like
    };
    Kind kind = Kind::Crash;
    std::string message;  // "race on shared memory at byte 512: thread (17,0,0) of block (0,1,0) reads 4 bytes at ..."
    std::string source;   // Source::name of the place, empty if unknown
    int line = 0;         // in that text, 0 if unknown
};

/// "race", "uninitialised read", ...
std::string_view to_string(Finding::Kind kind);

/// What a launch asked of the memory. A request is the i-th access of every lane of a warp at one place of the kernel.
struct Statistics {
    uint64_t shared_reads = 0, shared_writes = 0, shared_bytes = 0;  // by single lanes
    uint64_t global_reads = 0, global_writes = 0, global_bytes = 0;
    uint64_t atomics = 0;                // by single lanes, counted among the writes too
    uint64_t shared_requests = 0;        // by warps
    uint64_t shared_wavefronts = 0;      // passes that the 32 banks need for them
    uint64_t shared_bank_conflicts = 0;  // wavefronts beyond those that the width of the accesses needs
    uint64_t global_requests = 0;        // by warps
    uint64_t global_sectors = 0;         // different 32-byte sectors of each request, summed
    uint64_t box_bytes = 0;              // that the tensor memory accelerator has brought to shared memory
    uint64_t barriers = 0;               // __syncthreads and named ones, once for all threads that meet
    uint64_t warp_operations = 0;        // shuffles and __syncwarp, once a warp

    /// The same for one place of the kernel and one memory.
    struct Site {
        std::string source;
        int line = 0;
        std::string memory;  // "shared memory" or the region's name
        bool shared = false, writes = false;
        int bytes = 0;          // of one lane's access
        uint64_t accesses = 0;  // by single lanes
        uint64_t requests = 0;
        uint64_t wavefronts = 0;  // of shared memory
        uint64_t conflicts = 0;
        uint64_t sectors = 0;  // of global memory
    };
    std::vector<Site> sites;  // by source and line
};

struct Report {
    std::vector<Finding> findings;  // in the order of appearance; only the first few different ones
    Statistics statistics;          // if asked for
    double seconds = 0;
    uint64_t accesses = 0;  // reported by the kernel's threads
    bool ok() const { return findings.empty(); }
};

}  // namespace tw::emulator

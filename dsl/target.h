// GPU architectures, as data: their limits and the instructions that they have. Whoever asks what a machine can do asks
// a Target.
#pragma once
#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

namespace tw {

/// A GPU architecture. Compiling needs a target, not a device.
struct Target {
    std::string arch;  ///< "sm_90a"
    int compute_major = 0, compute_minor = 0;

    // What a block may have.
    int max_threads = 1024;
    int64_t shared_bytes = 0;  ///< opt-in maximum
    int max_registers_per_thread = 255;
    int warp_size = 32;
    int shared_banks = 32;  ///< each 4 bytes wide
    int64_t max_grid_x = 2147483647, max_grid_yz = 65535;

    // What a multiprocessor has.
    int64_t registers = 65536;  ///< each of 32 bits
    int threads_per_multiprocessor = 0, blocks_per_multiprocessor = 0;
    int64_t shared_bytes_per_multiprocessor = 0;

    // What the device has: the largest of the architecture, until target_of(device) asks the one that is there.
    int multiprocessors = 0;
    int64_t l2_bytes = 0;

    // Instructions and what a launch may ask for.
    bool has_mma_sync = false;             ///< mma.sync of bf16, f16, tf32 and i8; cp.async comes with it
    bool has_mma_fp8 = false;              ///< mma.sync of e4m3 and e5m2
    bool has_tma = false;                  ///< cp.async.bulk.tensor, and mbarriers that count its bytes
    bool has_clusters = false;             ///< blocks that run together and share memory
    bool has_stmatrix = false;             ///< stores of matrices that lanes hold
    bool has_wgmma = false;                ///< wgmma.mma_async: of Hopper alone, in its own feature set
    bool has_setmaxnreg = false;           ///< by which roles give and take registers
    bool has_programmatic_launch = false;  ///< kernels may start while the one before ends

    bool operator==(const Target&) const = default;
};

/// Knows sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a, sm_120a. Throws Error listing them otherwise.
Target target(const std::string& arch, std::source_location where = std::source_location::current());

/// The target of this name, or nullptr; it lives as long as the program.
const Target* find_target(std::string_view arch);
/// "sm_80, sm_86, ..."
std::string known_targets();
/// "wgmma": in words, a feature of targets, say &Target::has_wgmma.
std::string feature_text(bool Target::*feature);
/// The first of them that has it, say "sm_90" of &Target::has_tma.
const std::string& first_target_with(bool Target::*feature);

}  // namespace tw

// Limits of the machines that kernels are made for, as data.
#pragma once
#include <cstdint>
#include <source_location>
#include <string>

namespace tw {

/// A GPU architecture. Compiling needs a target, not a device.
struct Target {
    std::string arch;            ///< "sm_90a"
    int max_threads = 1024;      ///< of a block
    int64_t shared_bytes = 0;    ///< of a block, opt-in maximum
    int64_t registers = 65536;   ///< 32-bit, of a multiprocessor
    int max_registers_per_thread = 255;
    int warp_size = 32;
    int shared_banks = 32;       ///< of 4 bytes
    int multiprocessors = 0;     ///< of the largest GPU of the architecture
    bool programmatic_launch = false;  ///< kernels may start while the one before ends
    int64_t max_grid_x = 2147483647, max_grid_yz = 65535;
};

/// Knows sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a, sm_120a. Throws Error listing them otherwise.
Target target(const std::string& arch, std::source_location where = std::source_location::current());

}  // namespace tw

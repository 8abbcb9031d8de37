// What a device has, and sizes of launches.
#pragma once
#include <cstdint>
#include <string>

namespace tw {

/// Grid and block sizes. 64 bits, so that a product that went wrong is refused rather than wrapped.
struct Dim3 {
    int64_t x = 1, y = 1, z = 1;
    bool operator==(const Dim3&) const = default;
};

struct DeviceProperties {
    std::string name;  // "NVIDIA H200"
    std::string arch;  // "sm_90a", what NVRTC is asked for
    int compute_major = 0, compute_minor = 0;
    int64_t multiprocessors = 0;
    int64_t warp_size = 32;
    int64_t max_threads_per_block = 1024;
    int64_t max_threads_per_multiprocessor = 0;
    int64_t max_blocks_per_multiprocessor = 0;
    int64_t registers_per_multiprocessor = 0;
    Dim3 max_block{1024, 1024, 64};
    Dim3 max_grid{2147483647, 65535, 65535};
    int64_t shared_bytes_per_block = 49152;         // without asking
    int64_t shared_bytes_per_block_optin = 232448;  // 227 KiB on sm_90; static and dynamic together
    int64_t shared_bytes_per_multiprocessor = 0;
    int64_t reserved_shared_bytes_per_block = 0;
    int64_t l2_bytes = 0;
    int64_t memory_bytes = 0;
    int64_t clock_kilohertz = 0;
    int64_t memory_clock_kilohertz = 0;
    int64_t memory_bus_bits = 0;
};

}  // namespace tw

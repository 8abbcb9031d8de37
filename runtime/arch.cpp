#include "runtime/arch.h"

#include <array>

#include <fmt/ranges.h>

namespace tw {
namespace {

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; multiprocessors and L2 of A100, RTX
// 3090, RTX 4090, H200, B200, RTX 5090.
struct Row {
    std::string_view arch;
    int major, minor;
    int64_t multiprocessors, threads_per_multiprocessor, blocks_per_multiprocessor;
    int64_t shared_kib_per_multiprocessor, shared_kib_per_block, l2_mib;
};
constexpr std::array Rows{
    Row{"sm_80", 8, 0, 108, 2048, 32, 164, 163, 40},   Row{"sm_86", 8, 6, 82, 1536, 16, 100, 99, 6},
    Row{"sm_89", 8, 9, 128, 1536, 24, 100, 99, 72},    Row{"sm_90", 9, 0, 132, 2048, 32, 228, 227, 50},
    Row{"sm_90a", 9, 0, 132, 2048, 32, 228, 227, 50},  Row{"sm_100a", 10, 0, 148, 2048, 32, 228, 227, 126},
    Row{"sm_120a", 12, 0, 170, 1536, 24, 100, 99, 96},
};

}  // namespace

std::string arch_of(int compute_major, int compute_minor) {
    // From Hopper on, wgmma and its successors exist only in the architecture's own ("a") feature set.
    return fmt::format("sm_{}{}{}", compute_major, compute_minor, compute_major >= 9 ? "a" : "");
}

DeviceProperties properties_of(std::string_view arch) {
    std::vector<std::string_view> known;
    for (const Row& row : Rows) {
        known.push_back(row.arch);
        if (row.arch != arch) continue;
        DeviceProperties p;
        p.arch = arch;
        p.compute_major = row.major;
        p.compute_minor = row.minor;
        p.multiprocessors = row.multiprocessors;
        p.max_threads_per_multiprocessor = row.threads_per_multiprocessor;
        p.max_blocks_per_multiprocessor = row.blocks_per_multiprocessor;
        p.registers_per_multiprocessor = 65536;
        p.shared_bytes_per_block_optin = row.shared_kib_per_block * 1024;
        p.shared_bytes_per_multiprocessor = row.shared_kib_per_multiprocessor * 1024;
        p.reserved_shared_bytes_per_block = 1024;
        p.l2_bytes = row.l2_mib << 20;
        return p;
    }
    throw_error(NoDevice, "no architecture '{}'; known are {}", arch, fmt::join(known, ", "));
}

}  // namespace tw

// What a multiprocessor of an H200 does, for the models that choose tiles of convolutions: numbers of a clock cycle,
// and cycles. Each has one meaning wherever it stands; times that models predict with them are in docs/performance.md
// beside those that were measured.
#pragma once
#include <algorithm>
#include <cstdint>

namespace tw::schedules::multiprocessor {

/// Products and sums of a cycle that wgmma reaches on bf16 and f16, of 2048 at most: 256 filters of 3 x 3 at 56 x 56
/// run at 724 TFLOP/s.
inline constexpr double products = 1780;
/// Bytes a cycle that wgmma reads of shared memory.
inline constexpr double shared_bytes = 128;
/// Bytes a cycle of boxes that arrive, pixels (im2col) or filters, in rows of 128 bytes and whole sectors: 57 to 67
/// GB/s at 1.5 GHz, measured with 64 channels, where they bind.
inline constexpr double box_bytes = 45;
/// The same of boxes whose pixels are terms, several of 64 x 64 elements a stage: what suits 55 tilings of six weight
/// gradients, of which rows that begin within 32 bytes took twice as long.
inline constexpr double box_bytes_of_terms = 52;
/// Bytes a cycle that all multiprocessors together read of memory, where each byte is read once: the 3.0 TB/s of an
/// H100. An H200 has 4.2.
inline constexpr double memory_bytes_of_all = 1700;
/// Cycles from asking for a box until it is there, beside its bytes.
inline constexpr double box_latency = 1000;
/// Cycles until a block multiplies a tile's first terms, and to store its results.
inline constexpr double of_tile = 1500;
/// The same where warpgroups take tiles in turn: what the other one's products do not hide.
inline constexpr double of_turn = 600;

/// Cycles of what takes `busy` of them and reads so many bytes of memory meanwhile: the longer, and some of the other.
inline double beside_memory(double busy, double bytes) {
    const double memory = bytes / memory_bytes_of_all;
    return std::max(busy, memory) + std::min(busy, memory) / 10;
}

/// Cycles of a kernel that adds up the parts of so many f32 sums, each written and read: none where there is one part.
inline double adding_up(double sums, int64_t parts) {
    constexpr double bytes_a_cycle = 1500, of_kernel = 4000;  // of all multiprocessors together
    return parts == 1 ? 0 : sums * static_cast<double>(parts) * 8 / bytes_a_cycle + of_kernel;
}

}  // namespace tw::schedules::multiprocessor

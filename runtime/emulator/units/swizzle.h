// Where the bytes of a tile lie in shared memory: TMA and wgmma apply the same function to addresses.
#pragma once
#include <cstdint>

namespace tw::emulator {

/// The unit of 16 bytes within a line of `span` bytes (128, 64, 32, or 16: none) changes with the number of the line.
constexpr uint64_t swizzled(uint64_t address, uint32_t span) {
    return address ^ ((address >> 7 & (span / 16 - 1)) << 4);
}

}  // namespace tw::emulator

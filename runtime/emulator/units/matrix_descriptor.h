// Where wgmma finds an operand in shared memory, from the bits of its descriptor.
#pragma once
#include <cstdint>

#include "runtime/emulator/units/swizzle.h"

namespace tw::emulator {

/// Places are those before the swizzle, which is applied to addresses.
struct MatrixDescriptor {
    uint32_t start = 0, leading = 0, stride = 0;  // in bytes
    uint32_t base_offset = 0;
    uint32_t span = 16;  // of a line; 16: no swizzle

    explicit MatrixDescriptor(uint64_t bits)
        : start(uint32_t(bits & 0x3fff) << 4),
          leading(uint32_t(bits >> 16 & 0x3fff) << 4),
          stride(uint32_t(bits >> 32 & 0x3fff) << 4),
          base_offset(uint32_t(bits >> 49 & 7)) {
        constexpr uint32_t spans[] = {16, 128, 64, 32};
        span = spans[bits >> 62];
    }

    /// The place of byte `column` of a row, rows (of m or n) having their k side by side: lines of `span` bytes, eight
    /// of them every `stride`, any multiple of 16, and `leading` ignored; k that leaves its line goes on in the next.
    /// Without swizzle, 8 x 16 bytes together and the next 16 of k after `leading`.
    uint32_t k_major(uint32_t row, uint32_t column) const {
        if (span > 16) return start + row / 8 * stride + row % 8 * span + column;
        return start + row / 8 * stride + column / 16 * leading + row % 8 * 16 + column % 16;
    }

    /// The place of elements of 2 bytes of a row of k, m or n side by side: what does not fit into a line follows after
    /// `leading`, the next 8 of k after `stride`; without swizzle the other way round.
    uint32_t mn_major(uint32_t mn, uint32_t k) const {
        const uint32_t per_line = span / 2;
        const uint32_t next_line = span > 16 ? leading : stride, next_k = span > 16 ? stride : leading;
        return start + mn / per_line * next_line + k / 8 * next_k + k % 8 * span + mn % per_line * 2;
    }
};

}  // namespace tw::emulator

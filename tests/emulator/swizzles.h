// Swizzles as the hardware has them: functions of addresses.
#pragma once
#include "runtime/driver/tensor_map.h"

namespace tw {

/// Bytes of a swizzle's lines; without one, of a unit.
inline int span_of(Swizzle swizzle) {
    switch (swizzle) {
        case Swizzle::None: return 16;
        case Swizzle::Bytes32: return 32;
        case Swizzle::Bytes64: return 64;
        case Swizzle::Bytes128: return 128;
    }
    return 0;
}

/// Where a byte of shared memory lies that would lie at `byte` without the swizzle: the bits of a unit's number within
/// its line are exchanged by those of the line's.
inline int swizzled(int byte, int span) { return byte ^ (byte >> 7 & (span / 16 - 1)) << 4; }

}  // namespace tw

// Which thread holds which part of a matrix: PTX's fragments, of mma and of wgmma alike. A warpgroup is four warps,
// whose fragments lie below each other.
#pragma once
#include <cstddef>

namespace tw::emulator {

struct Position {
    int row, column;
};

/// The place of element e of what a thread holds of a [16 * warps, k], elements of `bytes` bytes.
constexpr Position position_in_a(int thread, int e, int bytes) {
    const int per_register = 4 / bytes, r = e / per_register, lane = thread % 32;
    return {16 * (thread / 32) + lane / 4 + 8 * (r % 2), (4 * (lane % 4) + 16 * (r / 2)) / bytes + e % per_register};
}

/// Its place in b [k, 8], as column n and k.
constexpr Position position_in_b(int lane, int e, int bytes) {
    const int per_register = 4 / bytes, r = e / per_register;
    return {lane / 4, (4 * (lane % 4) + 16 * r) / bytes + e % per_register};
}

/// Its place in d [16 * warps, n], elements of 4 bytes.
constexpr Position position_in_d(int thread, int e) {
    const int lane = thread % 32;
    return {16 * (thread / 32) + lane / 4 + 8 * (e / 2 % 2), 8 * (e / 4) + 2 * (lane % 4) + e % 2};
}

}  // namespace tw::emulator

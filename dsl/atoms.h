// Matrix instructions as data: what they compute, on what types, and which machines have them.
#pragma once
#include <string>
#include <vector>

#include "dsl/target.h"
#include "dsl/type.h"

namespace tw {

/// Families of matrix instructions.
enum class MatrixUnit {
    MmaSync,  ///< mma.sync: a warp, operands in registers; from sm_80 on
    Wgmma,    ///< wgmma.mma_async: a warpgroup, operands in shared memory; sm_90a
};
inline constexpr MatrixUnit mma_sync = MatrixUnit::MmaSync, wgmma = MatrixUnit::Wgmma;
std::string to_string(MatrixUnit unit);

/// accumulator[i, j] += sum over p < k of a[i, p] * b[p, j], for i < m and j < n, by one warp, or by the four warps of
/// a warpgroup, each of which has 16 rows.
///
/// Each lane holds parts of its warp's rows, as the PTX ISA draws them for the mma.m16n8 instructions. With g = lane /
/// 4, t = lane % 4 and v = 4 / bytes of an operand's element, in the order of its registers (slowest first):
///
///     accumulator[8 * h + g, 8 * j + 2 * t + p]  j < n / 8, h < 2, p < 2
///     a[8 * h + g, 4 * v * q + v * t + p]        q < k / (4 * v), h < 2, p < v
///     b[4 * v * q + v * t + p, g]                q < k / (4 * v), p < v
struct Atom {
    MatrixUnit unit;
    std::string name;  ///< the primitive's in device/
    int m, n, k;
    Type operand, accumulator;  ///< tf32: of elements of f32 or tf32
    bool Target::*needed;       ///< the feature that has it
};

/// All of them, of each kind the widest n and the longest k first.
const std::vector<Atom>& atoms();

}  // namespace tw

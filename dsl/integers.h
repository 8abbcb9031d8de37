// Arithmetic of integers as the language has it: 64 bits that wrap around, quotients rounded down.
#pragma once
#include <cstdint>
#include <optional>

#include "dsl/expr.h"

namespace tw {

/// The quotient, rounded toward minus infinity; b is not 0.
inline int64_t floor_div(int64_t a, int64_t b) {
    if (b == -1) return static_cast<int64_t>(-uint64_t(a));  // the processor traps on the least integer
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
/// Has the sign of b, which is not 0.
inline int64_t floor_mod(int64_t a, int64_t b) {
    if (b == -1) return 0;
    int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Of u32, given as 0 to 2^32 - 1.
inline int64_t shifted_left(int64_t a, int64_t b) { return b < 32 ? a << b & 0xffffffff : 0; }
inline int64_t shifted_right(int64_t a, int64_t b) { return b < 32 ? a >> b : 0; }
inline int64_t high_product(int64_t a, int64_t b) { return static_cast<int64_t>(uint64_t(a) * uint64_t(b) >> 32); }

/// Conditions are 0 and 1. Nothing if b is 0 and divides.
std::optional<int64_t> apply_to_integers(BinaryOp op, int64_t a, int64_t b);

}  // namespace tw

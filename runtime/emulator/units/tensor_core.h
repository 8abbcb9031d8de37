// The arithmetic of Hopper's tensor cores, bit for bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cpu/hooks.h"

namespace tw::emulator {

using emulated::MatrixType;

size_t bytes_of(MatrixType type);

/// Rows of k factors each, as the tensor cores see them.
struct Factors {
    int rows, k;
    std::vector<double> values;  // [rows, k]
    std::vector<int> exponents;  // [rows, k]; of a zero, NoExponent
    bool has_special = false;    // infinities or NaN

    Factors(int rows, int k) : rows(rows), k(k), values(size_t(rows * k)), exponents(size_t(rows * k)) {}
    void set(int row, int column, MatrixType type, uint32_t bits);
    void negate();
};

constexpr int NoExponent = -1'000'000;

/// Fractional bits below the largest exponent that terms of a sum keep: 13 of fp8 in wgmma, else 25.
constexpr int FractionBits = 25, Fp8WarpgroupFractionBits = 13;

/// Bits of a result's mantissa: of fp8 in wgmma as few as its sums have.
constexpr int MantissaBits = 23, Fp8WarpgroupMantissaBits = 13;

/// d[a.rows, b.rows] += a b^T. Each result is one sum: its terms, d among them, are aligned to the largest exponent of
/// all (a product's is the sum of its factors', a zero has none), truncated to `fraction_bits`, added exactly, and the
/// sum is rounded toward zero to `mantissa_bits`, or to an infinity beyond the largest float; a NaN is 0x7fffffff. As
/// Hopper does: Khattak and Mikaitis, arXiv 2512.07004. Compared with an H200, infinities, NaN and subnormals included,
/// for mma and wgmma of bf16, f16 and tf32 and for wgmma of fp8: 196608 results each, no difference.
void multiply_add(float* d, const Factors& a, const Factors& b, int fraction_bits, int mantissa_bits = MantissaBits);

/// The same by mma.sync of fp8 with k = 32, which Hopper makes of f16, subnormals of fp8 too: one such sum from zero
/// over the first two of every four k, one on top of it over the other two, and a rounded addition of d. Likewise
/// compared.
void multiply_add_fp8(float* d, const Factors& a, const Factors& b);

/// The same of integers, which wrap.
void multiply_add(int32_t* d, const Factors& a, const Factors& b);

}  // namespace tw::emulator

// What tensor cores make of their operands, by sums of integers.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace tw {

struct Format {
    const char* type;  // in the kernel
    int bytes, exponent_bits, mantissa_bits;
    bool has_infinity = true;
    int bits() const { return 1 + exponent_bits + mantissa_bits; }
};

inline constexpr Format F16{"tw::f16", 2, 5, 10}, Bf16{"tw::bf16", 2, 8, 7}, Tf32{"float", 4, 8, 10},
    E4m3{"tw::e4m3", 1, 4, 3, false}, E5m2{"tw::e5m2", 1, 5, 2};

/// A number as significand * 2^(exponent - mantissa_bits), the significand not normalised.
struct Number {
    int64_t significand = 0;
    int exponent = 0;
    bool is_finite = true;
};

/// Negated, or not.
inline Number with_sign(bool negated, Number number) {
    if (negated) number.significand = -number.significand;
    return number;
}

inline Number decode(const Format& format, uint32_t bits) {
    if (format.bytes == 4) bits >>= 13;
    const int64_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
    const int exponent = int(bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
    const int64_t sign = bits >> (format.bits() - 1) & 1 ? -1 : 1;
    const int last = (1 << format.exponent_bits) - 1, bias = last / 2;
    const bool is_finite = exponent != last || (!format.has_infinity && mantissa != (1 << format.mantissa_bits) - 1);
    const int64_t hidden = exponent ? int64_t(1) << format.mantissa_bits : 0;
    return {sign * (mantissa | hidden), std::max(exponent, 1) - bias, is_finite};
}

inline Number decode_float(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const int exponent = int(bits >> 23 & 255);
    const int64_t significand = int64_t(bits & 0x7fffff) | (exponent ? 1 << 23 : 0);
    return {bits >> 31 ? -significand : significand, std::max(exponent, 1) - 127, exponent != 255};
}

/// x * 2^shift toward zero.
inline int64_t shifted(int64_t x, int shift) {
    const uint64_t magnitude = uint64_t(x < 0 ? -x : x);
    const uint64_t result = shift >= 0 ? magnitude << shift : shift > -64 ? magnitude >> -shift : 0;
    return x < 0 ? -int64_t(result) : int64_t(result);
}

inline float toward_zero(int64_t sum, int exponent) {
    int64_t magnitude = sum < 0 ? -sum : sum;
    int drop = std::max(0, 64 - std::countl_zero(uint64_t(magnitude)) - 24);  // bits beyond a float's
    drop = std::max(drop, -149 - exponent);
    const double kept = std::ldexp(double(drop < 64 ? magnitude >> drop : 0), drop + exponent);
    return float(sum < 0 ? -kept : kept);
}

/// The sum that the hardware makes of these terms, or nothing where one of them is not finite.
inline std::optional<float> expected_sum(float start, const std::vector<std::pair<Number, Number>>& factors,
                                         int mantissas, int fraction_bits) {
    const Number c = decode_float(start);
    bool is_finite = c.is_finite;
    int largest = c.significand ? c.exponent : -100000;
    for (auto& [a, b] : factors) {
        is_finite &= a.is_finite && b.is_finite;
        if (a.significand && b.significand) largest = std::max(largest, a.exponent + b.exponent);
    }
    if (!is_finite) return std::nullopt;
    if (largest == -100000) return 0.0f;
    int64_t sum = shifted(c.significand, fraction_bits - 23 + c.exponent - largest);
    for (auto& [a, b] : factors)
        sum += shifted(a.significand * b.significand, fraction_bits - mantissas + a.exponent + b.exponent - largest);
    return toward_zero(sum, largest - fraction_bits);
}

/// Random numbers of a format, exponents at most `spread` around the middle, every tenth a zero.
class RandomNumbers {
public:
    RandomNumbers(uint64_t seed, int spread, bool specials) : random_(seed), spread_(spread), specials_(specials) {}

    uint32_t operator()(const Format& format) {
        const uint32_t last = (1u << format.exponent_bits) - 1;
        const int middle = int(last / 2), spread = std::min(spread_, middle);
        uint32_t exponent = uint32_t(middle - spread + int(random_() % uint64_t(2 * spread + 1)));
        if (random_() % 16 == 0 && spread_ > 100) exponent = 0;  // a subnormal
        uint32_t mantissa = uint32_t(random_()) & ((1u << format.mantissa_bits) - 1);
        const uint64_t choice = random_() % 100;
        if (specials_ && choice < 3) exponent = last;
        if (specials_ && choice < 2) mantissa = choice == 0 ? 0 : (1u << format.mantissa_bits) - 1;
        if (choice >= 90) exponent = mantissa = 0;
        const uint32_t sign = uint32_t(random_() & 1) << (format.bits() - 1);
        const uint32_t bits = sign | exponent << format.mantissa_bits | mantissa;
        return format.bytes == 4 ? bits << 13 | (uint32_t(random_()) & 0x1fff) : bits;
    }

    float start() {
        const uint32_t bits = (*this)({"", 4, 8, 10});
        return std::bit_cast<float>(bits);
    }

private:
    std::mt19937_64 random_;
    int spread_;
    bool specials_;
};

}  // namespace tw

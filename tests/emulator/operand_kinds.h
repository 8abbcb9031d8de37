// Operands of tensor cores, a million sets of them: each kind asks something else of the sums.
#pragma once
#include <array>
#include <cstdint>
#include <cstdlib>

#include "runtime/driver/driver.h"
#include "tests/emulator/tensor_core_reference.h"

namespace tw {

enum class OperandKind {
    Normal,
    Wide,        ///< all exponents
    Subnormal,   ///< of a, times those of all sizes; sums start near the smallest floats
    Cancelling,  ///< pairs of products whose sum is nothing or a last bit
    Special,     ///< infinities and NaN among them
};
inline constexpr std::array<OperandKind, 5> AllOperandKinds = {
    OperandKind::Normal, OperandKind::Wide, OperandKind::Subnormal, OperandKind::Cancelling, OperandKind::Special};

class RandomOperands {
public:
    RandomOperands(OperandKind kind, uint64_t seed)
        : kind_(kind), random_(seed), numbers_(seed, spread_of(kind), kind == OperandKind::Special) {}

    uint32_t a(const Format& format) {
        const uint32_t bits = numbers_(format);
        return kind_ == OperandKind::Subnormal ? with_small_exponent(format, bits) : bits;
    }
    uint32_t b(const Format& format) { return numbers_(format); }
    uint32_t start() {
        const Format single{"", 4, 8, 10};
        const uint32_t bits = numbers_(single);
        return kind_ == OperandKind::Subnormal ? with_small_exponent(single, bits) : bits;
    }

    bool cancels() const { return kind_ == OperandKind::Cancelling; }
    /// -a, every fourth with another last bit: the a of the product that cancels.
    uint32_t nearly_negated(const Format& format, uint32_t bits) {
        const int unused = format.bytes == 4 ? 13 : 0;  // tf32 stands in the upper bits of a float
        const uint32_t last = random_() % 4 == 0 ? 1u << unused : 0;
        return bits ^ (1u << (format.bits() - 1 + unused)) ^ last;
    }

private:
    static int spread_of(OperandKind kind) {
        switch (kind) {
            case OperandKind::Normal: return 3;
            case OperandKind::Cancelling: return 4;
            case OperandKind::Special: return 12;
            case OperandKind::Wide: return 127;
            case OperandKind::Subnormal: return 127;
        }
        return 0;
    }
    /// Exponents 0, which are the subnormals', to 2.
    uint32_t with_small_exponent(const Format& format, uint32_t bits) {
        const int shift = format.mantissa_bits + (format.bytes == 4 ? 13 : 0);
        const uint32_t exponents = ((1u << format.exponent_bits) - 1) << shift;
        const auto exponent = uint32_t(random_() % 4 ? 0 : random_() % 3);
        return (bits & ~exponents) | exponent << shift;
    }

    OperandKind kind_;
    std::mt19937_64 random_;
    RandomNumbers numbers_;
};

/// Blocks of `results` each for a million sets of operands, all kinds together, where a GPU is to be compared with; a
/// few where there is none. TW_OPERAND_SETS asks for another number.
inline int64_t blocks_for_each_kind(int64_t results) {
    const char* given = std::getenv("TW_OPERAND_SETS");
    const bool on_gpu = best_device().device->kind() == DeviceKind::Cuda;
    const int64_t sets = given ? std::atoll(given) : on_gpu ? 1'000'000 : 5'000, kinds = AllOperandKinds.size();
    return (sets / kinds + results - 1) / results;
}

}  // namespace tw

#include "runtime/emulator/units/reduce_add.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace tw::emulator {
namespace {

float as_float(uint16_t bits, bool is_f16) {
    if (!is_f16) return std::bit_cast<float>(uint32_t(bits) << 16);
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
}

/// To nearest even in a format of 16 bits.
uint16_t narrowed(double x, bool is_f16) {
    const int mantissa_bits = is_f16 ? 10 : 7, smallest = is_f16 ? -14 : -126, bias = is_f16 ? 15 : 127;
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0, infinity = uint16_t((2 * bias + 1) << mantissa_bits);
    x = std::abs(x);
    if (std::isnan(x)) return 0x7fff;
    if (x == 0) return sign;
    const int exponent = std::isinf(x) ? bias + 1 : std::max(std::ilogb(x), smallest);
    if (exponent > bias) return sign | infinity;
    const auto units = uint32_t(std::nearbyint(std::ldexp(x, mantissa_bits - exponent)));  // may carry
    const uint32_t bits = units + (uint32_t(exponent - smallest) << mantissa_bits);
    return sign | uint16_t(std::min<uint32_t>(bits, infinity));
}

template <class T>
void add(unsigned char* to, const unsigned char* from) {
    T a, b;
    std::memcpy(&a, to, sizeof a);
    std::memcpy(&b, from, sizeof b);
    a = T(a + b);
    std::memcpy(to, &a, sizeof a);
}

void add_narrow(unsigned char* to, const unsigned char* from, bool is_f16) {
    uint16_t a, b;
    std::memcpy(&a, to, sizeof a);
    std::memcpy(&b, from, sizeof b);
    a = narrowed(double(as_float(a, is_f16)) + double(as_float(b, is_f16)), is_f16);
    std::memcpy(to, &a, sizeof a);
}

}  // namespace

void reduce_add(TensorElement element, unsigned char* to, const unsigned char* from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += bytes_of(element)) {
        switch (element) {
            case TensorElement::F32: add<float>(to + i, from + i); break;
            case TensorElement::F64: add<double>(to + i, from + i); break;
            case TensorElement::F16: add_narrow(to + i, from + i, true); break;
            case TensorElement::BF16: add_narrow(to + i, from + i, false); break;
            case TensorElement::U8: add<uint8_t>(to + i, from + i); break;
            case TensorElement::U16: add<uint16_t>(to + i, from + i); break;
            case TensorElement::U32:
            case TensorElement::S32: add<uint32_t>(to + i, from + i); break;
            case TensorElement::U64:
            case TensorElement::S64: add<uint64_t>(to + i, from + i); break;
        }
    }
}

}  // namespace tw::emulator

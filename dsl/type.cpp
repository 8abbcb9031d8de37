#include "dsl/type.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/error.h"

namespace tw {
namespace {

constexpr std::array kTypes = {
    TypeInfo{Type::Bool, "bool", 1, false, false}, TypeInfo{Type::I8, "i8", 1, false, true},
    TypeInfo{Type::U8, "u8", 1, false, true},      TypeInfo{Type::I32, "i32", 4, false, false},
    TypeInfo{Type::U32, "u32", 4, false, false},   TypeInfo{Type::I64, "i64", 8, false, false},
    TypeInfo{Type::F16, "f16", 2, true, true},     TypeInfo{Type::BF16, "bf16", 2, true, true},
    TypeInfo{Type::TF32, "tf32", 4, true, true},   TypeInfo{Type::E4M3, "e4m3", 1, true, true},
    TypeInfo{Type::E5M2, "e5m2", 1, true, true},   TypeInfo{Type::F32, "f32", 4, true, false},
    TypeInfo{Type::F64, "f64", 8, true, false},
};

/// A binary format of at most 16 bits: sign, exponent, fraction.
struct Format {
    int fraction_bits;
    int min_exponent;  // of normal numbers; the exponent's bias is 1 - min_exponent
    double max;        // the largest finite number
    bool saturates;    // else what is larger becomes infinite
    bool has_infinity;
    uint16_t infinity, nan;  // bit patterns; cvt writes NaN as all ones but the sign
};
constexpr Format kF16 = {10, -14, 65504, false, true, 0x7c00, 0x7fff};
constexpr Format kBF16 = {7, -126, 0x1.fep127, false, true, 0x7f80, 0x7fff};
constexpr Format kE4M3 = {3, -6, 448, true, false, 0, 0x7f};
constexpr Format kE5M2 = {2, -14, 57344, true, true, 0x7c, 0x7f};

const Format& format_of(Type type) {
    switch (type) {
        case Type::F16: return kF16;
        case Type::BF16: return kBF16;
        case Type::E4M3: return kE4M3;
        default: return kE5M2;
    }
}

double power_of_two(int exponent) { return std::bit_cast<double>(uint64_t(exponent + 1023) << 52); }

double round_normal(double real, int fraction_bits) {
    int dropped = 52 - fraction_bits;
    uint64_t bits = std::bit_cast<uint64_t>(real);
    bits += ((uint64_t{1} << (dropped - 1)) - 1) + ((bits >> dropped) & 1);  // to nearest, ties to even
    return std::bit_cast<double>(bits >> dropped << dropped);
}

/// Adding 1.5 * 2^52 quanta leaves no bits below the quantum; the adder rounds to nearest even.
double round_subnormal(double real, double quantum) {
    double shift = quantum * 0x1.8p52;
    return std::copysign((real + shift) - shift, real);
}

double round_to_format(const Format& format, double real) {
    if (std::isnan(real)) return real;
    double magnitude = std::fabs(real);
    double overflow = format.saturates ? format.max : std::numeric_limits<double>::infinity();
    if (std::isinf(real)) return std::copysign(overflow, real);
    double rounded = magnitude >= power_of_two(format.min_exponent)
                         ? round_normal(real, format.fraction_bits)
                         : round_subnormal(real, power_of_two(format.min_exponent - format.fraction_bits));
    return std::fabs(rounded) > format.max ? std::copysign(overflow, rounded) : rounded;
}

/// As cvt.rna.tf32.f32: 10 bits of fraction, ties away from zero; a carry out of the largest number gives infinity.
double round_to_tf32(double real) {
    if (!std::isfinite(real)) return real;
    double magnitude = std::fabs(real);
    double rounded = 0;
    if (magnitude < power_of_two(-126)) {
        double quantum = power_of_two(-126 - 10);
        rounded = std::round(magnitude / quantum) * quantum;
    } else {
        constexpr int dropped = 52 - 10;
        uint64_t bits = std::bit_cast<uint64_t>(magnitude) + (uint64_t{1} << (dropped - 1));
        rounded = std::bit_cast<double>(bits >> dropped << dropped);
    }
    if (rounded >= power_of_two(128)) rounded = std::numeric_limits<double>::infinity();
    return std::copysign(rounded, real);
}

uint16_t sign_bit(const Format& format) {
    int exponent_bits = std::bit_width(unsigned(2 - 2 * format.min_exponent));  // bias 2^(bits-1) - 1
    return uint16_t(1u << (format.fraction_bits + exponent_bits));
}

uint16_t encode(const Format& format, double real) {
    if (std::isnan(real)) return format.nan;
    uint16_t sign = std::signbit(real) ? sign_bit(format) : uint16_t{0};
    if (std::isinf(real) && format.has_infinity) return sign | format.infinity;
    double magnitude = std::fabs(round_to_format(format, real));
    if (std::isinf(magnitude)) return sign | format.infinity;
    if (magnitude < power_of_two(format.min_exponent))
        return sign | uint16_t(magnitude / power_of_two(format.min_exponent - format.fraction_bits));
    uint64_t bits = std::bit_cast<uint64_t>(magnitude) >> (52 - format.fraction_bits);
    return sign | uint16_t(bits - (uint64_t(1023 - (1 - format.min_exponent)) << format.fraction_bits));
}

double decode(const Format& format, uint16_t bits) {
    uint16_t sign = bits & sign_bit(format);
    uint16_t magnitude = bits & (sign_bit(format) - 1);
    double value = 0;
    if (format.has_infinity ? magnitude > format.infinity : magnitude == format.nan)
        value = std::numeric_limits<double>::quiet_NaN();
    else if (format.has_infinity && magnitude == format.infinity)
        value = std::numeric_limits<double>::infinity();
    else if (magnitude >> format.fraction_bits == 0)
        value = magnitude * power_of_two(format.min_exponent - format.fraction_bits);
    else
        value = std::bit_cast<double>((uint64_t(magnitude) << (52 - format.fraction_bits)) +
                                      (uint64_t(1023 - (1 - format.min_exponent)) << 52));
    return sign ? -value : value;
}

struct Range {
    int64_t min, max;
};
Range range_of(Type type) {
    switch (type) {
        case Type::Bool: return {0, 1};
        case Type::I8: return {-128, 127};
        case Type::U8: return {0, 255};
        case Type::I32: return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
        case Type::U32: return {0, std::numeric_limits<uint32_t>::max()};
        default: return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
    }
}

int64_t truncate_saturating(Type type, double real) {
    if (std::isnan(real)) return 0;
    Range range = range_of(type);
    if (real <= static_cast<double>(range.min)) return range.min;
    if (real >= static_cast<double>(range.max)) return range.max;
    return static_cast<int64_t>(real);
}

/// The integer as a double whose last bit is sticky ("round to odd"), so that a second rounding to fewer bits is right.
double to_double_for_rounding(int64_t integer) {
    if (std::abs(integer >> 1) < (int64_t{1} << 52)) return static_cast<double>(integer);
    bool inexact = (integer & 0x7ff) != 0;
    return static_cast<double>((integer & ~int64_t{0x7ff}) | (inexact ? 0x800 : 0));
}

template <class T>
T read_as(const void* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}
template <class T>
void write_as(void* bytes, T value) {
    std::memcpy(bytes, &value, sizeof value);
}

}  // namespace

const TypeInfo& info(Type type) { return kTypes[static_cast<size_t>(type)]; }

float truncate_tf32(float real) { return std::bit_cast<float>(std::bit_cast<uint32_t>(real) & ~0x1fffu); }

double round_to_type(Type type, double real) {
    switch (type) {
        case Type::F64: return real;
        case Type::F32: return static_cast<float>(real);
        case Type::TF32: return round_to_tf32(real);
        case Type::F16:
        case Type::BF16:
        case Type::E4M3:
        case Type::E5M2: return round_to_format(format_of(type), real);
        default: internal_check(false, "round_to_type({}): not a float type", name_of(type));
    }
    return real;
}

double unit_roundoff(Type type) {
    int digits = 0;  // of the mantissa, the hidden one included
    switch (type) {
        case Type::F64: digits = 53; break;
        case Type::F32: digits = 24; break;
        case Type::TF32:
        case Type::F16: digits = 11; break;
        case Type::BF16: digits = 8; break;
        case Type::E4M3: digits = 4; break;
        case Type::E5M2: digits = 3; break;
        default: internal_check(false, "unit_roundoff({}): not a float type", name_of(type));
    }
    return std::ldexp(1.0, -digits);
}

int64_t wrap_to_type(Type type, int64_t integer) {
    switch (type) {
        case Type::Bool: return integer != 0;
        case Type::I8: return static_cast<int8_t>(integer);
        case Type::U8: return static_cast<uint8_t>(integer);
        case Type::I32: return static_cast<int32_t>(integer);
        case Type::U32: return static_cast<uint32_t>(integer);
        default: return integer;
    }
}

Value make_value(Type type, double real) { return convert(type, {Type::F64, real, 0}); }
Value make_value(Type type, int64_t integer) { return convert(type, {Type::I64, 0, integer}); }

Value convert(Type to, const Value& value) {
    // Infinities of e5m2 too, which saturates only what comes from elsewhere; tf32 in memory has bits that do not
    // count.
    if (to == value.type && to != Type::TF32) return value;
    if (is_float(value.type)) {
        if (is_float(to)) return {to, round_to_type(to, value.real), 0};
        if (to == Type::Bool) return {to, 0, value.real != 0};
        return {to, 0, truncate_saturating(to, value.real)};
    }
    if (to == Type::F64) return {to, static_cast<double>(value.integer), 0};
    if (is_float(to)) return {to, round_to_type(to, to_double_for_rounding(value.integer)), 0};
    return {to, 0, wrap_to_type(to, value.integer)};
}

Value load_element(Type type, const void* bytes) {
    switch (type) {
        case Type::Bool: return {type, 0, read_as<uint8_t>(bytes) != 0};
        case Type::I8: return {type, 0, read_as<int8_t>(bytes)};
        case Type::U8: return {type, 0, read_as<uint8_t>(bytes)};
        case Type::I32: return {type, 0, read_as<int32_t>(bytes)};
        case Type::U32: return {type, 0, read_as<uint32_t>(bytes)};
        case Type::I64: return {type, 0, read_as<int64_t>(bytes)};
        case Type::F16: return {type, decode(kF16, read_as<uint16_t>(bytes)), 0};
        case Type::BF16: return {type, std::bit_cast<float>(uint32_t{read_as<uint16_t>(bytes)} << 16), 0};
        case Type::E4M3: return {type, decode(kE4M3, read_as<uint8_t>(bytes)), 0};
        case Type::E5M2: return {type, decode(kE5M2, read_as<uint8_t>(bytes)), 0};
        case Type::TF32:
        case Type::F32: return {type, read_as<float>(bytes), 0};
        case Type::F64: return {type, read_as<double>(bytes), 0};
    }
    return {};
}

void store_element(const Value& value, void* bytes) {
    switch (value.type) {
        case Type::Bool:
        case Type::I8:
        case Type::U8: return write_as(bytes, static_cast<uint8_t>(value.integer));
        case Type::I32:
        case Type::U32: return write_as(bytes, static_cast<uint32_t>(value.integer));
        case Type::I64: return write_as(bytes, value.integer);
        case Type::F16:
        case Type::BF16: return write_as(bytes, encode(format_of(value.type), value.real));
        case Type::E4M3:
        case Type::E5M2: return write_as(bytes, static_cast<uint8_t>(encode(format_of(value.type), value.real)));
        case Type::TF32: return write_as(bytes, static_cast<float>(round_to_tf32(value.real)));
        case Type::F32: return write_as(bytes, static_cast<float>(value.real));
        case Type::F64: return write_as(bytes, value.real);
    }
}

Value bits_as(Type to, const Value& value) {
    internal_check(bytes_of(to) == bytes_of(value.type), "bits of {} as {}", name_of(value.type), name_of(to));
    unsigned char bytes[sizeof(int64_t)] = {};
    store_element(value, bytes);
    return load_element(to, bytes);
}

}  // namespace tw

#include "dsl/type.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tw {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The layout of a narrow format, and its values by the textbook formula.
struct Narrow {
    Type type;
    int exponent_bits, fraction_bits, bias;
    bool has_infinity;
    double max;

    int bits() const { return 1 + exponent_bits + fraction_bits; }
    double value(uint32_t pattern) const {
        uint32_t fraction = pattern & ((1u << fraction_bits) - 1);
        uint32_t exponent = (pattern >> fraction_bits) & ((1u << exponent_bits) - 1);
        double sign = pattern >> (bits() - 1) ? -1 : 1;
        uint32_t all_ones = (1u << exponent_bits) - 1;
        if (has_infinity && exponent == all_ones) return fraction ? NAN : sign * kInfinity;
        if (!has_infinity && exponent == all_ones && fraction == (1u << fraction_bits) - 1) return NAN;
        double scaled = std::ldexp(fraction, -fraction_bits);
        if (exponent == 0) return sign * std::ldexp(scaled, 1 - bias);
        return sign * std::ldexp(1 + scaled, static_cast<int>(exponent) - bias);
    }
};

const std::vector<Narrow> kNarrow = {{Type::F16, 5, 10, 15, true, 65504},
                                     {Type::BF16, 8, 7, 127, true, std::ldexp(255.0 / 128, 127)},
                                     {Type::E4M3, 4, 3, 7, false, 448},
                                     {Type::E5M2, 5, 2, 15, true, 57344}};

uint32_t stored_bits(const Value& value) {
    unsigned char bytes[8] = {};
    store_element(value, bytes);
    uint32_t bits = 0;
    std::memcpy(&bits, bytes, sizeof bits);
    return bits;
}

bool same(double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return a == b && std::signbit(a) == std::signbit(b);
}

TEST(TypeTest, EveryPatternLoadsAsItsFormulaSaysAndStoresBack) {
    for (const Narrow& format : kNarrow)
        for (uint32_t pattern = 0; pattern < 1u << format.bits(); ++pattern) {
            Value value = load_element(format.type, &pattern);
            ASSERT_TRUE(same(value.real, format.value(pattern))) << name_of(format.type) << " " << pattern;
            if (std::isnan(value.real)) continue;
            ASSERT_EQ(stored_bits(value), pattern) << name_of(format.type);
        }
}

/// All finite values, with the parity of their pattern.
std::map<double, bool> finite_values(const Narrow& format) {
    std::map<double, bool> values;
    for (uint32_t pattern = 0; pattern < 1u << (format.bits() - 1); ++pattern)
        if (double value = format.value(pattern); std::isfinite(value)) values[value] = pattern & 1;
    return values;
}

/// By search among the neighbours: to nearest, ties to the even pattern. `next` stands one step above the maximum.
double round_by_search(const Narrow& format, const std::map<double, bool>& values, double real) {
    double magnitude = std::fabs(real);
    double overflow = format.type == Type::E4M3 || format.type == Type::E5M2 ? format.max : kInfinity;
    auto above = values.lower_bound(magnitude);
    double below = 0, rounded = 0;
    if (above != values.end() && above->first == magnitude) return real;
    if (above == values.end()) {
        below = format.max;
        double next = format.max + std::ldexp(1.0, std::ilogb(format.max) - format.fraction_bits);
        bool up = magnitude - below >= next - magnitude;  // of the two, the maximum has the odd pattern or saturates
        rounded = up ? overflow : below;
    } else {
        below = std::prev(above)->first;
        double to_below = magnitude - below, to_above = above->first - magnitude;
        bool up = to_above < to_below || (to_above == to_below && std::prev(above)->second);
        rounded = up ? above->first : below;
    }
    return std::copysign(rounded, real);
}

TEST(TypeTest, RoundsToNearestEven) {
    for (const Narrow& format : kNarrow) {
        auto values = finite_values(format);
        for (auto at = values.begin(); std::next(at) != values.end(); ++at) {
            double low = at->first, high = std::next(at)->first, middle = (low + high) / 2;
            for (double real : {low, middle, std::nextafter(middle, low), std::nextafter(middle, high)})
                for (double signed_real : {real, -real})
                    ASSERT_TRUE(
                        same(round_to_type(format.type, signed_real), round_by_search(format, values, signed_real)))
                        << name_of(format.type) << " " << signed_real;
        }
        std::mt19937_64 random(7);
        for (int sample = 0; sample < 100000; ++sample) {
            double real = std::bit_cast<double>(random());
            if (sample % 2) real = std::bit_cast<float>(static_cast<uint32_t>(random()));
            if (!std::isfinite(real)) continue;
            ASSERT_TRUE(same(round_to_type(format.type, real), round_by_search(format, values, real)))
                << name_of(format.type) << " " << real;
        }
    }
}

TEST(TypeTest, Overflow) {
    EXPECT_EQ(round_to_type(Type::F16, 65519.99), 65504);
    EXPECT_EQ(round_to_type(Type::F16, 65520), kInfinity);
    EXPECT_EQ(round_to_type(Type::BF16, -3.4e38), -kInfinity);
    EXPECT_EQ(round_to_type(Type::E4M3, 1e9), 448);
    EXPECT_EQ(round_to_type(Type::E4M3, -kInfinity), -448);
    EXPECT_EQ(round_to_type(Type::E5M2, kInfinity), 57344);
    EXPECT_TRUE(std::isnan(round_to_type(Type::E4M3, NAN)));
    EXPECT_EQ(stored_bits({Type::E4M3, NAN, 0}), 0x7fu);
    EXPECT_EQ(stored_bits({Type::F16, NAN, 0}), 0x7fffu);
}

TEST(TypeTest, Tf32RoundsTiesAwayFromZero) {
    double ulp = std::ldexp(1, -10);
    EXPECT_EQ(round_to_type(Type::TF32, 1 + ulp / 2), 1 + ulp);
    EXPECT_EQ(round_to_type(Type::TF32, -1 - ulp / 2), -1 - ulp);
    EXPECT_EQ(round_to_type(Type::TF32, 1 + ulp / 2 - std::ldexp(1, -23)), 1);
    EXPECT_EQ(round_to_type(Type::TF32, std::numeric_limits<float>::max()), kInfinity);
    std::mt19937 random(7);
    for (int sample = 0; sample < 100000; ++sample) {
        float real = std::bit_cast<float>(static_cast<uint32_t>(random()));
        if (!std::isnormal(real)) continue;
        double quantum = std::ldexp(1, std::ilogb(real) - 10);
        double rounded = std::copysign(std::floor(std::fabs(real) / quantum + 0.5) * quantum, real);
        if (std::fabs(rounded) < std::numeric_limits<float>::max()) {
            ASSERT_EQ(round_to_type(Type::TF32, real), rounded);
        }
    }
}

/// f32 in between would make ties of what lies beside them.
TEST(TypeTest, Tf32OfDoublesRoundsOnce) {
    std::mt19937_64 random(7);
    for (int sample = 0; sample < 100000; ++sample) {
        int exponent = static_cast<int>(random() % 280) - 150;
        double quantum = std::ldexp(1, std::max(exponent, -126) - 10);
        double tie = std::ldexp(1 + static_cast<double>(random() % 1024) / 1024, exponent);
        tie = std::floor(tie / quantum) * quantum + quantum / 2;
        for (double real : {tie, std::nextafter(tie, 0), std::nextafter(tie, INFINITY), tie * (1 - 0x1p-40)})
            for (double signed_real : {real, -real}) {
                double rounded = real < tie ? tie - quantum / 2 : tie + quantum / 2;
                if (rounded >= 0x1p128) rounded = kInfinity;
                ASSERT_EQ(round_to_type(Type::TF32, signed_real), std::copysign(rounded, signed_real))
                    << fmt::format("{:a}", signed_real);
            }
    }
}

TEST(TypeTest, AnInfinityOfE5m2StaysOne) {
    for (double infinity : {kInfinity, -kInfinity}) {
        Value value{Type::E5M2, infinity, 0};
        EXPECT_EQ(convert(Type::E5M2, value).real, infinity);
        EXPECT_EQ(convert(Type::F32, value).real, infinity);
        EXPECT_EQ(convert(Type::E5M2, {Type::F32, infinity, 0}).real, std::copysign(57344, infinity));
    }
}

TEST(TypeTest, ValuesOfLiterals) {
    EXPECT_EQ(make_value(i32, 99).integer, 99);
    EXPECT_EQ(make_value(i32, -99L).integer, -99);
    EXPECT_EQ(make_value(u8, 300U).integer, 44);
    EXPECT_EQ(make_value(boolean, true).integer, 1);
    EXPECT_EQ(make_value(f32, 3).real, 3);
    EXPECT_EQ(make_value(f16, 0.5F).real, 0.5);
    EXPECT_EQ(make_value(i32, 2.75).integer, 2);
}

TEST(TypeTest, Integers) {
    EXPECT_EQ(wrap_to_type(Type::I8, 200), -56);
    EXPECT_EQ(wrap_to_type(Type::U32, -1), 0xffffffff);
    EXPECT_EQ(wrap_to_type(Type::Bool, 2), 1);
    EXPECT_EQ(convert(Type::I32, {Type::F32, -2.9, 0}).integer, -2);
    EXPECT_EQ(convert(Type::I32, {Type::F32, 3e9, 0}).integer, 2147483647);
    EXPECT_EQ(convert(Type::U8, {Type::F32, -1, 0}).integer, 0);
    EXPECT_EQ(convert(Type::I64, {Type::F64, NAN, 0}).integer, 0);
    EXPECT_EQ(convert(Type::I64, {Type::F64, 1e30, 0}).integer, std::numeric_limits<int64_t>::max());
    EXPECT_EQ(convert(Type::F32, {Type::I64, 0, 16777217}).real, 16777216);
    EXPECT_EQ(convert(Type::Bool, {Type::F32, 0.5, 0}).integer, 1);
}

/// f64 in between would round twice: 2^53 + 2^29 + 1 lies just above a tie of f32's.
TEST(TypeTest, LargeIntegersRoundOnce) {
    int64_t above_tie = (int64_t{1} << 62) + (int64_t{1} << 38) + 1;
    EXPECT_EQ(convert(Type::F32, {Type::I64, 0, above_tie}).real, std::ldexp(1, 62) + std::ldexp(1, 39));
    EXPECT_EQ(convert(Type::F32, {Type::I64, 0, -above_tie}).real, -std::ldexp(1, 62) - std::ldexp(1, 39));
    std::mt19937_64 random(7);
    for (int sample = 0; sample < 100000; ++sample) {
        int64_t integer = static_cast<int64_t>(random()) >> (random() % 63);
        ASSERT_EQ(convert(Type::F32, {Type::I64, 0, integer}).real, static_cast<float>(integer)) << integer;
    }
}

TEST(TypeTest, MemoryRoundTrip) {
    std::mt19937_64 random(7);
    for (Type type : {Type::Bool, Type::I8, Type::U8, Type::I32, Type::U32, Type::I64}) {
        for (int sample = 0; sample < 100; ++sample) {
            unsigned char bytes[8];
            Value value = make_value(type, static_cast<int64_t>(random()));
            store_element(value, bytes);
            EXPECT_EQ(load_element(type, bytes).integer, value.integer) << name_of(type);
        }
    }
    for (Type type : {Type::TF32, Type::F32, Type::F64}) {
        unsigned char bytes[8];
        store_element(make_value(type, 1.5), bytes);
        EXPECT_EQ(load_element(type, bytes).real, 1.5);
    }
    EXPECT_EQ(bytes_of(Type::TF32), 4);
    EXPECT_EQ(name_of(Type::E4M3), "e4m3");
}

TEST(Rounding, UnitRoundoffIsTheLargestRelativeError) {
    for (Type type : {f32, tf32, f16, bf16, e4m3, e5m2}) {
        double largest = 0;
        for (int k = 0; k <= 1 << 14; ++k) {
            double x = 1 + k * 0x1p-14 + (type == f32 ? 0x1p-24 : 0);
            largest = std::max(largest, std::abs(round_to_type(type, x) - x) / x);
        }
        EXPECT_LE(largest, unit_roundoff(type)) << name_of(type);
        EXPECT_GT(largest, 0.85 * unit_roundoff(type)) << name_of(type);
    }
}

}  // namespace
}  // namespace tw

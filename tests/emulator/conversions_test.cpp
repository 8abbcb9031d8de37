// Conversions of the emulator's vocabulary against arithmetic in double that knows no bits.
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "tests/emulator/apply.h"

namespace tw {
namespace {

struct Format {
    int exponent_bits, mantissa_bits;
    bool saturates;  // beyond the largest number; else infinity
    double largest;
    uint32_t nan;
    int smallest_exponent() const { return 2 - (1 << (exponent_bits - 1)); }
    int sign_bit() const { return exponent_bits + mantissa_bits; }
};
constexpr Format F16{5, 10, false, 65504, 0x7fff}, BF16{8, 7, false, 0x1.fep127, 0x7fff}, E4M3{4, 3, true, 448, 0x7f},
    E5M2{5, 2, true, 57344, 0x7f};

/// The nearest number of the format, ties to even.
uint32_t encode(const Format& format, long double x) {
    if (std::isnan(x)) return format.nan;
    const uint32_t sign = std::signbit(x) ? 1u << format.sign_bit() : 0;
    const long double magnitude = std::abs(x);
    const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
    auto step_of = [&](long double value) {
        int exponent =
            value == 0 ? format.smallest_exponent() : std::max(std::ilogb(value), format.smallest_exponent());
        return std::ldexp(1.0L, exponent - format.mantissa_bits);
    };
    long double rounded =
        std::isinf(magnitude) ? magnitude : std::nearbyint(magnitude / step_of(magnitude)) * step_of(magnitude);
    if (rounded > format.largest) {
        if (!format.saturates) return sign | infinity;
        rounded = format.largest;
    }
    const long double least_normal = std::ldexp(1.0L, format.smallest_exponent());
    const long double steps = rounded / step_of(rounded);  // a whole number, of mantissa_bits + 1 bits if normal
    if (rounded < least_normal) return sign | static_cast<uint32_t>(steps);
    const auto exponent = static_cast<uint32_t>(std::ilogb(rounded) - format.smallest_exponent());
    return sign | ((exponent << format.mantissa_bits) + static_cast<uint32_t>(steps));
}

void expect_encodes(const std::string& primitive, const Format& format) {
    auto device = open_device("emulated");
    std::vector<float> xs = telling_floats();
    std::vector<uint32_t> results = apply(*device, {primitive}, fmt::format("tw::{}(x).bits", primitive), xs);
    for (size_t i = 0; i < xs.size(); ++i)
        ASSERT_EQ(results[i], encode(format, xs[i])) << fmt::format("{}({:a})", primitive, xs[i]);
}

TEST(Conversions, F16RoundsToNearestEven) { expect_encodes("to_f16", F16); }
TEST(Conversions, Bf16RoundsToNearestEven) { expect_encodes("to_bf16", BF16); }
TEST(Conversions, E4m3RoundsAndSaturates) { expect_encodes("to_e4m3", E4M3); }
TEST(Conversions, E5m2RoundsAndSaturates) { expect_encodes("to_e5m2", E5M2); }

/// Two at once are each what it is alone.
TEST(Conversions, PairsOfEightBits) {
    for (const auto& [type, format] : {std::pair{"e4m3", E4M3}, std::pair{"e5m2", E5M2}}) {
        auto device = open_device("emulated");
        std::vector<float> xs = telling_floats();
        const std::string text = fmt::format(
            "[=] {{ float two[2] = {{x, -3 * x}}; tw::{} pair[2]; tw::narrow_pair(pair, two); "
            "return pair[0].bits | (unsigned)pair[1].bits << 8; }}()",
            type);
        std::vector<uint32_t> results = apply(*device, {fmt::format("narrow_pair_{}", type)}, text, xs);
        for (size_t i = 0; i < xs.size(); ++i)
            ASSERT_EQ(results[i], encode(format, xs[i]) | encode(format, -3 * xs[i]) << 8) << xs[i];
    }
}

/// A part of them, with all kinds of mantissas.
std::vector<float> some_telling_floats() {
    std::vector<float> all = telling_floats(), some;
    for (size_t i = 0; i < all.size(); i += 17) some.push_back(all[i]);
    return some;
}

/// What a conversion from a wide type gives, that type's numbers made of a float's bits by a formula that C++ and the
/// kernel share.
template <class Wide>
void expect_rounds_once(const std::string& formula, const std::function<Wide(float)>& number) {
    auto device = open_device("emulated");
    std::vector<float> xs = some_telling_floats();
    const std::pair<const char*, Format> formats[] = {
        {"to_f16", F16}, {"to_bf16", BF16}, {"to_e4m3", E4M3}, {"to_e5m2", E5M2}};
    for (const auto& [primitive, format] : formats) {
        std::vector<uint32_t> results = apply(*device, {primitive, "round_to_odd", "bits"},
                                              fmt::format("tw::{}(tw::round_to_odd({})).bits", primitive, formula), xs);
        for (size_t i = 0; i < xs.size(); ++i)
            ASSERT_EQ(results[i], encode(format, static_cast<long double>(number(xs[i]))))
                << fmt::format("{}({}), x = {:a}", primitive, formula, xs[i]);
    }
}

TEST(Conversions, DoublesRoundOnce) {
    expect_rounds_once<double>("(double)x * (1 + 0x1p-40)", [](float x) { return x * (1 + 0x1p-40); });
    expect_rounds_once<double>("(double)x * (1 - 0x1p-40)", [](float x) { return x * (1 - 0x1p-40); });
    expect_rounds_once<double>("(double)x * 0x1.0000001p+30", [](float x) { return x * 0x1.0000001p+30; });
    expect_rounds_once<double>("(double)x * 0x1.0000001p-60", [](float x) { return x * 0x1.0000001p-60; });
}

TEST(Conversions, IntegersRoundOnce) {
    auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
    expect_rounds_once<int32_t>("(int)tw::float_bits(x)", [&](float x) { return static_cast<int32_t>(bits(x)); });
    expect_rounds_once<uint32_t>("tw::float_bits(x)", bits);
    expect_rounds_once<int64_t>("(long long)tw::float_bits(x) << 26 | 1",
                                [&](float x) { return int64_t{bits(x)} << 26 | 1; });
    expect_rounds_once<int64_t>("(long long)((unsigned long long)tw::float_bits(x) << 32)",
                                [&](float x) { return static_cast<int64_t>(uint64_t{bits(x)} << 32); });
    expect_rounds_once<int64_t>("-(long long)tw::float_bits(x) * 0x40000001",
                                [&](float x) { return -int64_t{bits(x)} * 0x40000001; });
}

TEST(Conversions, Tf32OfDoublesRoundsOnce) {
    auto device = open_device("emulated");
    std::vector<float> xs = some_telling_floats();
    std::vector<uint32_t> results =
        apply(*device, {"to_tf32", "round_to_odd", "bits"},
              "tw::float_bits(tw::to_tf32(tw::round_to_odd((double)x * (1 - 0x1p-40))))", xs);
    for (size_t i = 0; i < xs.size(); ++i) {
        if (std::isnan(xs[i])) continue;
        const double real = xs[i] * (1 - 0x1p-40);
        const double step = std::ldexp(1.0, (real == 0 ? -126 : std::max(std::ilogb(real), -126)) - 10);
        const double expected = std::isinf(real) ? real : std::round(real / step) * step;  // away from zero
        ASSERT_EQ(std::bit_cast<float>(results[i]), static_cast<float>(expected)) << fmt::format("{:a}", xs[i]);
    }
}

/// Every number of a narrow type is widened to what encodes as it.
void expect_widens(const std::string& type, const Format& format) {
    auto device = open_device("emulated");
    const bool has_infinity = !format.saturates || format.exponent_bits == 5;
    std::vector<float> codes;
    for (uint32_t code = 0; code < 2u << format.sign_bit(); ++code) codes.push_back(std::bit_cast<float>(code));
    std::string storage = format.sign_bit() == 7 ? "unsigned char" : "unsigned short";
    std::vector<uint32_t> results =
        apply(*device, {"to_f32_" + type, "bits"},
              fmt::format("tw::float_bits(tw::to_f32(tw::{}{{({})tw::float_bits(x)}}))", type, storage), codes);
    for (uint32_t code = 0; code < codes.size(); ++code) {
        const float value = std::bit_cast<float>(results[code]);
        const uint32_t magnitude = code & ((1u << format.sign_bit()) - 1);
        const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
        if (has_infinity && magnitude == infinity)
            EXPECT_TRUE(std::isinf(value) && std::signbit(value) == (code != magnitude)) << code;
        else if (has_infinity ? magnitude > infinity : magnitude == 0x7f)
            EXPECT_TRUE(std::isnan(value)) << code;
        else
            EXPECT_EQ(encode(format, value), code);
    }
}

TEST(Conversions, NarrowTypesWidenExactly) {
    expect_widens("f16", F16);
    expect_widens("bf16", BF16);
    expect_widens("e4m3", E4M3);
    expect_widens("e5m2", E5M2);
}

TEST(Conversions, Tf32RoundsTiesAway) {
    auto device = open_device("emulated");
    std::vector<float> xs = telling_floats(), results = apply(*device, "to_tf32", xs);
    for (size_t i = 0; i < xs.size(); ++i) {
        if (std::isnan(xs[i])) {
            ASSERT_TRUE(std::isnan(results[i]));
            continue;
        }
        const double step = std::ldexp(1.0, (xs[i] == 0 ? -126 : std::max(std::ilogb(xs[i]), -126)) - 10);
        const double expected = std::isinf(xs[i]) ? xs[i] : std::round(xs[i] / step) * step;  // away from zero
        ASSERT_EQ(results[i], static_cast<float>(expected)) << fmt::format("{:a}", xs[i]);
    }
}

// Toward zero, to ten bits of mantissa; infinities and the NaN of arithmetic stay what they are.
TEST(Conversions, Tf32Truncates) {
    auto device = open_device("emulated");
    std::vector<float> xs = telling_floats(), results = apply(*device, "truncate_tf32", xs);
    for (size_t i = 0; i < xs.size(); ++i) {
        if (std::isnan(xs[i])) continue;
        const double step = std::ldexp(1.0, (xs[i] == 0 ? -126 : std::max(std::ilogb(xs[i]), -126)) - 10);
        const double expected = std::isinf(xs[i]) ? xs[i] : std::trunc(xs[i] / step) * step;
        ASSERT_EQ(results[i], static_cast<float>(expected)) << fmt::format("{:a}", xs[i]);
        ASSERT_EQ(std::signbit(results[i]), std::signbit(xs[i]));
    }
    EXPECT_TRUE(std::isnan(apply(*device, "truncate_tf32", {std::bit_cast<float>(0x7fffffffu)})[0]));
}

template <class Integer>
void expect_converts(const std::string& primitive, double (*whole)(double)) {
    auto device = open_device("emulated");
    std::vector<float> xs = telling_floats();
    std::vector<uint32_t> results = apply(*device, {primitive}, fmt::format("(unsigned)tw::{}(x)", primitive), xs);
    using Limits = std::numeric_limits<Integer>;
    for (size_t i = 0; i < xs.size(); ++i) {
        const double x = std::isnan(xs[i]) ? 0 : whole(static_cast<double>(xs[i]));
        const auto expected = static_cast<Integer>(std::clamp(x, double(Limits::min()), double(Limits::max())));
        ASSERT_EQ(results[i], static_cast<uint32_t>(expected)) << fmt::format("{}({:a})", primitive, xs[i]);
    }
}

TEST(Conversions, IntegersSaturate) {
    expect_converts<int32_t>("to_i32", std::trunc);
    expect_converts<uint32_t>("to_u32", std::trunc);
    expect_converts<int8_t>("to_i8", std::trunc);
    expect_converts<uint8_t>("to_u8", std::trunc);
    expect_converts<int32_t>("round_to_i32", std::nearbyint);
    expect_converts<int8_t>("round_to_i8", std::nearbyint);
    expect_converts<uint8_t>("round_to_u8", std::nearbyint);
}

TEST(Conversions, I64Saturates) {
    auto device = open_device("emulated");
    std::vector<float> xs = telling_floats();
    std::vector<uint32_t> high = apply(*device, {"to_i64"}, "(unsigned)(tw::to_i64(x) >> 32)", xs),
                          low = apply(*device, {"to_i64"}, "(unsigned)tw::to_i64(x)", xs);
    for (size_t i = 0; i < xs.size(); ++i) {
        int64_t expected = std::isnan(xs[i])  ? 0
                           : xs[i] >= 0x1p63f ? std::numeric_limits<int64_t>::max()
                           : xs[i] < -0x1p63f ? std::numeric_limits<int64_t>::min()
                                              : static_cast<int64_t>(xs[i]);
        ASSERT_EQ(static_cast<int64_t>(uint64_t{high[i]} << 32 | low[i]), expected) << xs[i];
    }
}

}  // namespace
}  // namespace tw

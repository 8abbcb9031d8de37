// The vocabulary's functions against double, in units in the last place, and their special values.
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "dsl/plain_arithmetic.h"
#include "tests/emulator/apply.h"

namespace tw {
namespace {

constexpr float Infinity = std::numeric_limits<float>::infinity(), NaN = std::numeric_limits<float>::quiet_NaN();

struct Deviation {
    double ulp = 0;
    float at = 0;
};

struct Function {
    const char* name;
    double (*truth)(double);
    double bound;      // in ulp; by an approximation of the hardware that is as bad as it may be
    double per_x = 0;  // more where x is negative, for each 1 of it; 0 may take the place of subnormal values then
};

/// The largest error, less what is allowed for x; infinities and NaN must be where they belong.
Deviation largest_error(const std::vector<float>& xs, const std::vector<float>& results, const Function& function) {
    Deviation largest;
    for (size_t i = 0; i < xs.size(); ++i) {
        const double expected = function.truth(xs[i]);
        if (function.per_x > 0 && std::abs(expected) < 0x1p-126 && results[i] == 0) continue;
        const float rounded = static_cast<float>(expected), result = results[i];
        if (!std::isfinite(rounded) || !std::isfinite(result)) {
            EXPECT_TRUE(std::isnan(expected) ? std::isnan(result) : result == rounded)
                << fmt::format("{:a}: {}, not {}", xs[i], result, expected);
            if (testing::Test::HasFailure()) return largest;
            continue;
        }
        const int exponent = expected == 0 ? -149 : std::max(std::ilogb(expected) - 23, -149);
        const double ulp =
            std::abs(result - expected) / std::ldexp(1.0, exponent) + function.per_x * std::min(0.0, double{xs[i]});
        if (ulp > largest.ulp) largest = {ulp, xs[i]};
    }
    return largest;
}

constexpr Function Functions[] = {
    {"exp_f32", std::exp, 2.5},
    {"exp2_f32", [](double x) { return x < -126 ? 0 : std::exp2(x); }, 2.3},
    {"log_f32", std::log, 1.0},
    {"log2_f32", std::log2, 1.6},
    {"tanh_f32", std::tanh, 2.0},
    {"erf_f32", std::erf, 3.0},
    {"erf_unbranched_f32", std::erf, 3.0},
    {"sigmoid_f32", [](double x) { return 1 / (1 + std::exp(-x)); }, 4.0, 1.0},
    {"logistic2_f32", [](double x) { return x >= 126 ? 0 : 1 / (1 + std::exp2(x)); }, 4.0},
    {"sqrt", std::sqrt, 0.5},
    {"rsqrt", [](double x) { return 1 / std::sqrt(x); }, 1.5},
    {"ex2_approx", std::exp2, 2.3},
    {"rcp_approx", [](double x) { return 1 / x; }, 1.0},
    {"rsqrt_approx", [](double x) { return 1 / std::sqrt(x); }, 1.6},
    {"tanh_approx", std::tanh, 200},
};

void check_accuracy(const char* device_name) {
    auto device = open_device(device_name);
    std::vector<float> xs, all = telling_floats();
    for (size_t i = 0; i < all.size(); i += 5) xs.push_back(all[i]);
    for (const Function& function : Functions) {
        Deviation error = largest_error(xs, apply(*device, function.name, xs), function);
        fmt::print("{:12} {:12} at most {:.2f} ulp, at {}\n", device->name(), function.name, error.ulp, error.at);
        EXPECT_LE(error.ulp, function.bound) << function.name << " at " << error.at;
    }
}

TEST(Math, IsAccurateInTheEmulator) { check_accuracy("emulated"); }

TEST(Math, IsAccurateOnAGpu) {
    if (best_device().device->kind() != DeviceKind::Cuda) GTEST_SKIP() << best_device().reason;
    check_accuracy("cuda");
}

/// As exp, of what is no more than 0.
void check_exp_nonpositive(const char* device_name) {
    std::vector<float> xs = telling_floats();
    for (float& x : xs) x = -std::abs(x);
    const Function exp_only{"exp_nonpositive_f32", [](double x) { return x < -87.33 ? 0 : std::exp(x); }, 2.5};
    EXPECT_LE(largest_error(xs, apply(*open_device(device_name), exp_only.name, xs), exp_only).ulp, 2.5);
}

TEST(Math, ExpNonpositiveIsAccurateInTheEmulator) { check_exp_nonpositive("emulated"); }

TEST(Math, ExpNonpositiveIsAccurateOnAGpu) {
    if (best_device().device->kind() != DeviceKind::Cuda) GTEST_SKIP() << best_device().reason;
    check_exp_nonpositive("cuda");
}

/// (1 + erf(x / sqrt(2))) / 2 to two roundings of what 1 is the sum of, however small it is.
void check_normal_cdf(const char* device_name) {
    const std::vector<float> xs = telling_floats(), results = apply(*open_device(device_name), "normal_cdf_f32", xs);
    for (size_t i = 0; i < xs.size(); ++i) {
        if (std::isnan(xs[i])) {
            EXPECT_TRUE(std::isnan(results[i]));
            continue;
        }
        EXPECT_LE(std::abs(results[i] - normal_cdf(xs[i])), 2.1e-7) << fmt::format("{:a}", xs[i]);
        if (testing::Test::HasFailure()) return;
    }
}

TEST(Math, NormalCdfIsAccurateInTheEmulator) { check_normal_cdf("emulated"); }

TEST(Math, NormalCdfIsAccurateOnAGpu) {
    if (best_device().device->kind() != DeviceKind::Cuda) GTEST_SKIP() << best_device().reason;
    check_normal_cdf("cuda");
}

/// Divisors of any bits, and those that are no numbers to correct with: as a division, but of what is nearly subnormal.
void check_divided(const char* device_name) {
    auto device = open_device(device_name);
    const std::vector<float> xs = telling_floats();
    std::vector<std::string> divisors{"tw::bits_float(tw::float_bits(x) * 2654435761u + 40503u)"};
    for (const char* bits : {"0u", "0x80000000u", "0x7f800000u", "0xff800000u", "0x7fc00000u", "1u", "0x007fffffu",
                             "0x00800000u", "0x7f7fffffu", "0xff000000u", "0x3f800000u", "0x42fe0000u"})
        divisors.push_back(fmt::format("tw::bits_float({})", bits));
    for (const std::string& divisor : divisors) {
        const std::string expression = fmt::format("tw::float_bits(tw::divided(x, {}))", divisor);
        const auto results = apply(*device, {"divided_f32", "bits"}, expression, xs),
                   given = apply(*device, {"bits"}, fmt::format("tw::float_bits({})", divisor), xs);
        for (size_t i = 0; i < xs.size(); ++i) {
            const float x = xs[i], y = std::bit_cast<float>(given[i]), result = std::bit_cast<float>(results[i]);
            const float expected = x / y;
            const bool nearly_subnormal = (x != 0 && std::abs(x) < 0x1p-100f) || std::abs(expected) < 0x1p-125f;
            const double few = 2 * std::ldexp(1.0, -149) * std::max(1.0, 2 / std::abs(double{y}));
            if (std::isnan(expected))
                EXPECT_TRUE(std::isnan(result)) << fmt::format("{:a} / {:a}", x, y);
            else if (nearly_subnormal && std::isfinite(expected) && expected != 0)
                EXPECT_LE(std::abs(double{result} - double{expected}), few + std::abs(expected) * 0x1p-23)
                    << fmt::format("{:a} / {:a}: {:a}", x, y, result);
            else
                EXPECT_EQ(std::bit_cast<uint32_t>(expected), results[i]) << fmt::format("{:a} / {:a}", x, y);
            if (testing::Test::HasFailure()) return;
        }
    }
}

TEST(Math, DividedIsADivisionInTheEmulator) { check_divided("emulated"); }

TEST(Math, DividedIsADivisionOnAGpu) {
    if (best_device().device->kind() != DeviceKind::Cuda) GTEST_SKIP() << best_device().reason;
    check_divided("cuda");
}

/// Where it has no subnormal number to give.
void check_powers_of_two(const char* device_name) {
    std::vector<float> xs, expected;
    for (int x = -160; x < 128; ++x) {
        xs.push_back(static_cast<float>(x));
        expected.push_back(x < -126 ? 0 : std::ldexp(1.0f, x));
    }
    EXPECT_EQ(apply(*open_device(device_name), "exp2_f32", xs), expected);
}

TEST(Math, PowersOfTwoAreExactInTheEmulator) { check_powers_of_two("emulated"); }

TEST(Math, PowersOfTwoAreExactOnAGpu) {
    if (best_device().device->kind() != DeviceKind::Cuda) GTEST_SKIP() << best_device().reason;
    check_powers_of_two("cuda");
}

std::vector<float> at(const std::string& name, const std::vector<float>& xs) {
    return apply(*open_device("emulated"), name, xs);
}

TEST(Math, SpecialValues) {
    EXPECT_EQ(at("exp_f32", {0.0f, -0.0f, Infinity, -Infinity, 89.0f, -104.0f}),
              (std::vector<float>{1, 1, Infinity, 0, Infinity, 0}));
    EXPECT_EQ(at("log_f32", {1.0f, 0.0f, -0.0f, Infinity}), (std::vector<float>{0, -Infinity, -Infinity, Infinity}));
    EXPECT_EQ(at("tanh_f32", {0.0f, Infinity, -Infinity, 20.0f}), (std::vector<float>{0, 1, -1, 1}));
    EXPECT_EQ(at("sigmoid_f32", {0.0f, Infinity, -Infinity, 20.0f, -200.0f}), (std::vector<float>{0.5f, 1, 0, 1, 0}));
    EXPECT_EQ(at("erf_f32", {0.0f, Infinity, -Infinity, 5.0f}), (std::vector<float>{0, 1, -1, 1}));
    EXPECT_TRUE(std::signbit(at("tanh_f32", {-0.0f})[0]));
    EXPECT_TRUE(std::signbit(at("erf_f32", {-0.0f})[0]));
    EXPECT_TRUE(std::signbit(at("round", {-0.3f})[0]));
    for (const char* name :
         {"exp_f32", "exp2_f32", "log_f32", "log2_f32", "tanh_f32", "erf_f32", "sigmoid_f32", "sqrt", "floor", "round"})
        EXPECT_TRUE(std::isnan(at(name, {NaN})[0])) << name;
    EXPECT_TRUE(std::isnan(at("log_f32", {-1.0f})[0]));
    EXPECT_EQ(at("round", {0.5f, 1.5f, 2.5f, -0.5f}), (std::vector<float>{0, 2, 2, 0}));
}

float of_expression(const std::string& name, const std::string& expression, float x = 0) {
    auto device = open_device("emulated");
    return std::bit_cast<float>(apply(*device, {name, "nan", "bits"}, "tw::float_bits(" + expression + ")", {x})[0]);
}

TEST(Math, MinAndMaxPreferNumbers) {
    EXPECT_EQ(of_expression("min", "tw::min(x, tw::nan<float>())", 3), 3);
    EXPECT_EQ(of_expression("max", "tw::max(tw::nan<float>(), x)", 3), 3);
    EXPECT_TRUE(std::isnan(of_expression("max", "tw::max(tw::nan<float>(), tw::nan<float>())")));
    EXPECT_TRUE(std::signbit(of_expression("min", "tw::min(x, -x)", 0)));
    EXPECT_FALSE(std::signbit(of_expression("max", "tw::max(-x, x)", 0)));
}

TEST(Math, FloorDivAndModGoTogether) {
    std::vector<float> codes;  // of pairs: 16 (a + 128) + b + 8
    for (int a = -100; a <= 100; ++a)
        for (int b = -7; b <= 7; ++b)
            if (b != 0) codes.push_back(std::bit_cast<float>(16 * (a + 128) + b + 8));
    const std::string pair = "((int)(tw::float_bits(x) / 16) - 128, (int)(tw::float_bits(x) % 16) - 8)";
    auto device = open_device("emulated");
    std::vector<uint32_t> quotients = apply(*device, {"floor_div", "bits"}, "(unsigned)tw::floor_div" + pair, codes),
                          rests = apply(*device, {"floor_mod", "bits"}, "(unsigned)tw::floor_mod" + pair, codes);
    for (size_t i = 0; i < codes.size(); ++i) {
        const int a = std::bit_cast<int>(codes[i]) / 16 - 128, b = std::bit_cast<int>(codes[i]) % 16 - 8;
        EXPECT_EQ(static_cast<int>(quotients[i]), std::floor(static_cast<double>(a) / b)) << a << " / " << b;
        EXPECT_EQ(a, static_cast<int>(quotients[i]) * b + static_cast<int>(rests[i])) << a << " / " << b;
    }
}

}  // namespace
}  // namespace tw

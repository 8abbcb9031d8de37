// mma.sync: the emulator's arithmetic against sums of integers, and against a GPU's.
#include <bit>
#include <cmath>

#include "tests/emulator/run_on.h"

namespace tw {
namespace {

struct Format {
    const char* type;  // in the kernel
    int bytes, exponent_bits, mantissa_bits;
    bool has_infinity = true;
    int bits() const { return 1 + exponent_bits + mantissa_bits; }
};

constexpr Format F16{"tw::f16", 2, 5, 10}, Bf16{"tw::bf16", 2, 8, 7}, Tf32{"float", 4, 8, 10},
    E4m3{"tw::e4m3", 1, 4, 3, false}, E5m2{"tw::e5m2", 1, 5, 2};

/// A number as significand * 2^(exponent - mantissa_bits), the significand not normalised.
struct Number {
    int64_t significand = 0;
    int exponent = 0;
    bool is_finite = true;
};

Number decode(const Format& format, uint32_t bits) {
    if (format.bytes == 4) bits >>= 13;
    const int64_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
    const int exponent = int(bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
    const int64_t sign = bits >> (format.bits() - 1) & 1 ? -1 : 1;
    const int last = (1 << format.exponent_bits) - 1, bias = last / 2;
    const bool is_finite = exponent != last || (!format.has_infinity && mantissa != (1 << format.mantissa_bits) - 1);
    const int64_t hidden = exponent ? int64_t(1) << format.mantissa_bits : 0;
    return {sign * (mantissa | hidden), std::max(exponent, 1) - bias, is_finite};
}

Number decode_float(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const int exponent = int(bits >> 23 & 255);
    const int64_t significand = int64_t(bits & 0x7fffff) | (exponent ? 1 << 23 : 0);
    return {bits >> 31 ? -significand : significand, std::max(exponent, 1) - 127, exponent != 255};
}

/// x * 2^shift toward zero.
int64_t shifted(int64_t x, int shift) {
    const uint64_t magnitude = uint64_t(x < 0 ? -x : x);
    const uint64_t result = shift >= 0 ? magnitude << shift : shift > -64 ? magnitude >> -shift : 0;
    return x < 0 ? -int64_t(result) : int64_t(result);
}

float toward_zero(int64_t sum, int exponent) {
    int64_t magnitude = sum < 0 ? -sum : sum;
    int drop = std::max(0, 64 - std::countl_zero(uint64_t(magnitude)) - 24);  // bits beyond a float's
    drop = std::max(drop, -149 - exponent);
    const double kept = std::ldexp(double(drop < 64 ? magnitude >> drop : 0), drop + exponent);
    return float(sum < 0 ? -kept : kept);
}

/// The sum that the hardware makes of these terms, or nothing where one of them is not finite.
std::optional<float> expected_sum(float start, const std::vector<std::pair<Number, Number>>& factors, int mantissas,
                                  int fraction_bits) {
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

struct Product {
    std::string name;  // of the primitive
    Format a, b;
    int k;
    std::string function = name.substr(0, name.find_last_of('_'));

    int a_elements() const { return 16 * k / 32; }
    int b_elements() const { return 8 * k / 32; }
    size_t lane_bytes() const { return size_t(a_elements() * a.bytes + b_elements() * b.bytes + 16); }

    SmallKernel kernel(int64_t blocks) const {
        return {.names = {name},
                .body = fmt::format(R"(const unsigned char* own = in + (blockIdx.x * 32 + t) * {bytes};
{A} a[{na}];
{B} b[{nb}];
float d[4];
for (int i = 0; i < {na}; ++i) a[i] = (({A}*)own)[i];
for (int i = 0; i < {nb}; ++i) b[i] = (({B}*)(own + sizeof(a)))[i];
for (int i = 0; i < 4; ++i) d[i] = ((float*)(own + sizeof(a) + sizeof(b)))[i];
tw::{function}(d, a, b);
for (int i = 0; i < 4; ++i) ((float*)out)[(blockIdx.x * 32 + t) * 4 + i] = d[i] == d[i] ? d[i] : __builtin_bit_cast(float, 0x7fffffff);)",
                                    fmt::arg("bytes", lane_bytes()), fmt::arg("A", a.type), fmt::arg("B", b.type),
                                    fmt::arg("na", a_elements()), fmt::arg("nb", b_elements()),
                                    fmt::arg("function", function)),
                .blocks = blocks};
    }
};

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
        const uint32_t bits = (*this)({"", 4, 8, 22});
        return std::bit_cast<float>(bits);
    }

private:
    std::mt19937_64 random_;
    int spread_;
    bool specials_;
};

Bytes random_operands(const Product& product, int64_t blocks, RandomNumbers& random) {
    Bytes in;
    auto put = [&](uint32_t bits, int bytes) {
        for (int i = 0; i < bytes; ++i) in.push_back(uint8_t(bits >> (8 * i)));
    };
    for (int64_t lane = 0; lane < 32 * blocks; ++lane) {
        for (int e = 0; e < product.a_elements(); ++e) put(random(product.a), product.a.bytes);
        for (int e = 0; e < product.b_elements(); ++e) put(random(product.b), product.b.bytes);
        for (int e = 0; e < 4; ++e) put(random({"", 4, 8, 10}), 4);
    }
    return in;
}

/// The n-th element of what PTX says that a thread of the group g = lane / 4, t = lane % 4 holds: its place in k, and
/// whether it is of the lower rows.
struct InFragment {
    int k;
    bool lower;
};
InFragment of_a(int lane, int e, int bytes) {
    const int per_register = 4 / bytes, r = e / per_register, of_register = e % per_register, t = lane % 4;
    const int first = bytes == 2 ? 2 * t + 8 * (r >= 2) : bytes == 4 ? t + 4 * (r >= 2) : 4 * t + 16 * (r >= 2);
    return {first + of_register, r % 2 == 1};
}
int k_of_b(int lane, int e, int bytes) {
    const int per_register = 4 / bytes, r = e / per_register, of_register = e % per_register, t = lane % 4;
    return (bytes == 2 ? 2 * t + 8 * r : bytes == 4 ? t + 4 * r : 4 * t + 16 * r) + of_register;
}

/// Of a block's 16x8 results, lane by lane.
std::vector<std::optional<float>> expected_results(const Product& product, const uint8_t* in) {
    std::vector<Number> a(size_t(16 * product.k)), b(size_t(8 * product.k));
    std::vector<float> starts;
    auto bits_at = [](const uint8_t* from, int bytes) {
        uint32_t bits = 0;
        std::memcpy(&bits, from, size_t(bytes));
        return bits;
    };
    for (int lane = 0; lane < 32; ++lane) {
        const uint8_t* own = in + size_t(lane) * product.lane_bytes();
        for (int e = 0; e < product.a_elements(); ++e, own += product.a.bytes) {
            auto [k, lower] = of_a(lane, e, product.a.bytes);
            a[size_t((lane / 4 + 8 * lower) * product.k + k)] = decode(product.a, bits_at(own, product.a.bytes));
        }
        for (int e = 0; e < product.b_elements(); ++e, own += product.b.bytes)
            b[size_t(lane / 4 * product.k + k_of_b(lane, e, product.b.bytes))] =
                decode(product.b, bits_at(own, product.b.bytes));
        for (int e = 0; e < 4; ++e) starts.push_back(std::bit_cast<float>(bits_at(own + 4 * e, 4)));
    }
    std::vector<std::optional<float>> results;
    for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 4; ++e) {
            const int row = lane / 4 + (e >= 2 ? 8 : 0), column = lane % 4 * 2 + e % 2;
            std::vector<std::pair<Number, Number>> factors;
            for (int k = 0; k < product.k; ++k)
                factors.emplace_back(a[size_t(row * product.k + k)], b[size_t(column * product.k + k)]);
            results.push_back(expected_sum(starts[size_t(lane * 4 + e)], factors,
                                           product.a.mantissa_bits + product.b.mantissa_bits, 25));
        }
    return results;
}

void PrintTo(const Product& product, std::ostream* out) {
    *out << product.name << " of " << product.a.type << " and " << product.b.type;
}

class MmaConformance : public testing::TestWithParam<Product> {};

TEST_P(MmaConformance, SumsAsTheHardwareDoes) {
    const Product& product = GetParam();
    const int64_t blocks = 24;
    uint64_t seed = 1;
    for (int spread : {0, 3, 12, 60, 127})
        for (bool specials : {false, true}) {
            RandomNumbers random(seed++, spread, specials);
            Bytes in = random_operands(product, blocks, random);
            auto results = values_of<float>(product.kernel(blocks).run_everywhere(in, size_t(blocks) * 32 * 16));
            size_t num_wrong = 0, num_finite = 0;
            for (size_t block = 0; block < size_t(blocks); ++block) {
                auto expected = expected_results(product, in.data() + block * 32 * product.lane_bytes());
                for (size_t i = 0; i < expected.size(); ++i) {
                    if (!expected[i] || std::isinf(*expected[i])) continue;
                    ++num_finite;
                    num_wrong +=
                        std::bit_cast<uint32_t>(*expected[i]) != std::bit_cast<uint32_t>(results[block * 128 + i]);
                }
            }
            EXPECT_EQ(num_wrong, 0u) << "of " << num_finite << ", spread " << spread;
            if (specials) continue;
            EXPECT_GT(num_finite, results.size() / 8);
        }
}

INSTANTIATE_TEST_SUITE_P(
    Types, MmaConformance,
    testing::Values(Product{"mma_m16n8k16_bf16", Bf16, Bf16, 16}, Product{"mma_m16n8k16_f16", F16, F16, 16},
                    Product{"mma_m16n8k8_bf16", Bf16, Bf16, 8}, Product{"mma_m16n8k8_f16", F16, F16, 8},
                    Product{"mma_m16n8k8_tf32", Tf32, Tf32, 8}, Product{"mma_m16n8k32_fp8", E4m3, E4m3, 32},
                    Product{"mma_m16n8k32_fp8", E4m3, E5m2, 32}, Product{"mma_m16n8k32_fp8", E5m2, E4m3, 32},
                    Product{"mma_m16n8k32_fp8", E5m2, E5m2, 32}),
    [](const auto& info) { return fmt::format("{}_{}", info.param.name, info.index); });

TEST(MmaIntegers, AreExactAndWrap) {
    SmallKernel kernel{.names = {"mma_m16n8k32_s8"}, .body = R"(signed char a[16], b[8];
int d[4];
for (int i = 0; i < 16; ++i) a[i] = (signed char)in[t * 40 + i];
for (int i = 0; i < 8; ++i) b[i] = (signed char)in[t * 40 + 16 + i];
for (int i = 0; i < 4; ++i) d[i] = ((int*)(in + t * 40 + 24))[i];
tw::mma_m16n8k32(d, a, b);
for (int i = 0; i < 4; ++i) ((int*)out)[t * 4 + i] = d[i];)"};
    for (uint64_t seed = 0; seed < 4; ++seed) {
        Bytes in = random_bytes(32 * 40, seed);
        auto results = values_of<int32_t>(kernel.run_everywhere(in, 32 * 16));
        int8_t a[16][32], b[8][32];
        for (int lane = 0; lane < 32; ++lane) {
            for (int e = 0; e < 16; ++e)
                a[lane / 4 + 8 * of_a(lane, e, 1).lower][of_a(lane, e, 1).k] = int8_t(in[size_t(lane * 40 + e)]);
            for (int e = 0; e < 8; ++e) b[lane / 4][k_of_b(lane, e, 1)] = int8_t(in[size_t(lane * 40 + 16 + e)]);
        }
        for (int lane = 0; lane < 32; ++lane)
            for (int e = 0; e < 4; ++e) {
                uint32_t sum;
                std::memcpy(&sum, &in[size_t(lane * 40 + 24 + 4 * e)], 4);
                for (int k = 0; k < 32; ++k)
                    sum += uint32_t(a[lane / 4 + (e >= 2 ? 8 : 0)][k] * b[lane % 4 * 2 + e % 2][k]);
                EXPECT_EQ(results[size_t(lane * 4 + e)], int32_t(sum));
            }
    }
}

}  // namespace
}  // namespace tw

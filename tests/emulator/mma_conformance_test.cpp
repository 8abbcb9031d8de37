// mma.sync: the emulator's arithmetic against sums of integers, and against a GPU's.
#include <fmt/ranges.h>

#include "tests/emulator/operand_kinds.h"
#include "tests/emulator/run_on.h"
#include "tests/emulator/tensor_core_reference.h"

namespace tw {
namespace {

struct Product {
    std::string name;  // of the primitive
    Format a, b;
    int k;
    bool negated = false;
    std::string function = negated ? name : name.substr(0, name.find_last_of('_'));

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

void put(Bytes& in, uint32_t bits, int bytes) {
    for (int i = 0; i < bytes; ++i) in.push_back(uint8_t(bits >> (8 * i)));
}

Bytes random_operands(const Product& product, int64_t blocks, RandomNumbers& random) {
    Bytes in;
    for (int64_t lane = 0; lane < 32 * blocks; ++lane) {
        for (int e = 0; e < product.a_elements(); ++e) put(in, random(product.a), product.a.bytes);
        for (int e = 0; e < product.b_elements(); ++e) put(in, random(product.b), product.b.bytes);
        for (int e = 0; e < 4; ++e) put(in, random({"", 4, 8, 10}), 4);
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

using Pairs = std::vector<std::pair<Number, Number>>;

/// The same number with its first bit in front, if f16 has that exponent.
Number in_f16(Number number, int mantissa_bits) {
    while (number.significand && std::abs(number.significand) >> mantissa_bits == 0 && number.exponent > -14) {
        number.significand *= 2;
        --number.exponent;
    }
    return number;
}

/// Hopper makes fp8 of f16, in two parts, and adds what was there in the end.
std::optional<float> expected_product(const Product& product, float start, const Pairs& factors) {
    const int mantissas = product.a.mantissa_bits + product.b.mantissa_bits;
    if (product.k < 32) return expected_sum(start, factors, mantissas, 25);
    Pairs parts[2];
    for (size_t k = 0; k < factors.size(); ++k)
        parts[k / 2 % 2].emplace_back(in_f16(factors[k].first, product.a.mantissa_bits),
                                      in_f16(factors[k].second, product.b.mantissa_bits));
    auto first = expected_sum(0, parts[0], mantissas, 25);
    auto both = first ? expected_sum(*first, parts[1], mantissas, 25) : first;
    if (!both || !std::isfinite(start)) return std::nullopt;
    return start + *both;
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
                with_sign(product.negated, decode(product.b, bits_at(own, product.b.bytes)));
        for (int e = 0; e < 4; ++e) starts.push_back(std::bit_cast<float>(bits_at(own + 4 * e, 4)));
    }
    std::vector<std::optional<float>> results;
    for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 4; ++e) {
            const int row = lane / 4 + (e >= 2 ? 8 : 0), column = lane % 4 * 2 + e % 2;
            std::vector<std::pair<Number, Number>> factors;
            for (int k = 0; k < product.k; ++k)
                factors.emplace_back(a[size_t(row * product.k + k)], b[size_t(column * product.k + k)]);
            results.push_back(expected_product(product, starts[size_t(lane * 4 + e)], factors));
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
                    if (!expected[i]) continue;
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

/// Of two elements of a lane that stand side by side in k, the second takes back the first one's product.
Bytes operands_of_kind(const Product& product, int64_t blocks, RandomOperands random) {
    Bytes in;
    for (int64_t lane = 0; lane < 32 * blocks; ++lane) {
        std::vector<uint32_t> a, b;
        for (int e = 0; e < product.a_elements(); ++e) a.push_back(random.a(product.a));
        for (int e = 0; e < product.b_elements(); ++e) b.push_back(random.b(product.b));
        for (int e = 0; random.cancels() && e < product.a_elements(); ++e) {
            // The register with the next k of the same row is the next but one where each holds one element.
            const int partner = product.a.bytes == 4 ? e ^ 2 : e ^ 1;
            if (partner > e && partner < product.a_elements())
                a[size_t(partner)] = random.nearly_negated(product.a, a[size_t(e)]);
        }
        for (int e = 0; random.cancels() && e + 1 < product.b_elements(); e += 2) b[size_t(e + 1)] = b[size_t(e)];
        for (uint32_t bits : a) put(in, bits, product.a.bytes);
        for (uint32_t bits : b) put(in, bits, product.b.bytes);
        for (int e = 0; e < 4; ++e) put(in, random.start(), 4);
    }
    return in;
}

/// The bits of the row of a, the column of b, and the start that a result is made of.
std::string described(const Product& product, const Bytes& in, size_t result) {
    const size_t block = result / 128;
    const int lane_of_result = int(result % 128 / 4), e_of_result = int(result % 4);
    const int row = lane_of_result / 4 + (e_of_result >= 2 ? 8 : 0), column = lane_of_result % 4 * 2 + e_of_result % 2;
    std::vector<std::string> a(size_t(product.k)), b(size_t(product.k));
    auto hex = [](const uint8_t* from, int bytes) {
        uint32_t bits = 0;
        std::memcpy(&bits, from, size_t(bytes));
        return fmt::format("{:0{}x}", bits, 2 * bytes);
    };
    std::string start;
    for (int lane = 0; lane < 32; ++lane) {
        const uint8_t* own = in.data() + (block * 32 + size_t(lane)) * product.lane_bytes();
        for (int e = 0; e < product.a_elements(); ++e, own += product.a.bytes) {
            auto [k, lower] = of_a(lane, e, product.a.bytes);
            if (lane / 4 + 8 * lower == row) a[size_t(k)] = hex(own, product.a.bytes);
        }
        for (int e = 0; e < product.b_elements(); ++e, own += product.b.bytes)
            if (lane / 4 == column) b[size_t(k_of_b(lane, e, product.b.bytes))] = hex(own, product.b.bytes);
        if (lane == lane_of_result) start = hex(own + 4 * e_of_result, 4);
    }
    return fmt::format("a {}, b {}, start {}", fmt::join(a, " "), fmt::join(b, " "), start);
}

TEST_P(MmaConformance, AMillionSetsOfOperands) {
    const Product& product = GetParam();
    const int64_t blocks = blocks_for_each_kind(128), read = std::min<int64_t>(blocks, 16);
    size_t num_sets = 0, num_checked = 0, num_zeros = 0;
    for (OperandKind kind : AllOperandKinds) {
        Bytes in = operands_of_kind(product, blocks, {kind, 71});
        SCOPED_TRACE(fmt::format("kind {}", int(kind)));
        auto results = values_of<float>(product.kernel(blocks).run_everywhere(
            in, size_t(blocks) * 32 * 16, [&](size_t byte) { return described(product, in, byte / 4); }));
        num_sets += results.size();
        for (size_t block = 0; block < size_t(read); ++block) {
            auto expected = expected_results(product, in.data() + block * 32 * product.lane_bytes());
            for (size_t i = 0; i < expected.size(); ++i) {
                if (!expected[i]) continue;
                const float result = results[block * 128 + i];
                ++num_checked;
                num_zeros += result == 0;
                EXPECT_EQ(std::bit_cast<uint32_t>(*expected[i]), std::bit_cast<uint32_t>(result))
                    << "block " << block << ", result " << i;
            }
        }
    }
    RecordProperty("sets_of_operands", int(num_sets));
    EXPECT_GT(num_checked, size_t(read) * 128 * 2);
    EXPECT_LT(num_zeros, num_checked / 2);
}

INSTANTIATE_TEST_SUITE_P(
    Types, MmaConformance,
    testing::Values(
        Product{"mma_m16n8k16_bf16", Bf16, Bf16, 16}, Product{"mma_m16n8k16_f16", F16, F16, 16},
        Product{"mma_m16n8k8_bf16", Bf16, Bf16, 8}, Product{"mma_m16n8k8_f16", F16, F16, 8},
        Product{"mma_m16n8k8_tf32", Tf32, Tf32, 8}, Product{"mma_m16n8k4_tf32", Tf32, Tf32, 4},
        Product{"mma_m16n8k32_fp8", E4m3, E4m3, 32}, Product{"mma_m16n8k32_fp8", E4m3, E5m2, 32},
        Product{"mma_m16n8k32_fp8", E5m2, E4m3, 32}, Product{"mma_m16n8k32_fp8", E5m2, E5m2, 32},
        Product{"mma_m16n8k16_negated", Bf16, Bf16, 16, true}, Product{"mma_m16n8k16_negated", F16, F16, 16, true},
        Product{"mma_m16n8k8_negated", F16, F16, 8, true}, Product{"mma_m16n8k8_negated", Tf32, Tf32, 8, true},
        Product{"mma_m16n8k4_negated", Tf32, Tf32, 4, true}, Product{"mma_m16n8k32_negated", E4m3, E4m3, 32, true}),
    [](const auto& info) { return fmt::format("{}_{}", info.param.name, info.index); });

TEST(MmaIntegers, AreExactAndWrap) {
    SmallKernel kernel{.names = {"mma_m16n8k32_s8"}, .body = R"(in += blockIdx.x * 32 * 40;
out += blockIdx.x * 32 * 16;
signed char a[16], b[8];
int d[4];
for (int i = 0; i < 16; ++i) a[i] = (signed char)in[t * 40 + i];
for (int i = 0; i < 8; ++i) b[i] = (signed char)in[t * 40 + 16 + i];
for (int i = 0; i < 4; ++i) d[i] = ((int*)(in + t * 40 + 24))[i];
tw::mma_m16n8k32(d, a, b);
for (int i = 0; i < 4; ++i) ((int*)out)[t * 4 + i] = d[i];)"};
    kernel.blocks = blocks_for_each_kind(128) * int64_t(AllOperandKinds.size());
    Bytes all = random_bytes(size_t(kernel.blocks) * 32 * 40, 1);
    auto all_results = values_of<int32_t>(kernel.run_everywhere(all, size_t(kernel.blocks) * 32 * 16));
    for (size_t block = 0; block < size_t(kernel.blocks); ++block) {
        const uint8_t* in = all.data() + block * 32 * 40;
        const int32_t* results = all_results.data() + block * 128;
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

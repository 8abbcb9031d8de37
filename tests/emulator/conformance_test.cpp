// The GPU's primitives and their twins: bit for bit, but for the bits of a NaN and the named approximations.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/emulator/apply.h"

namespace tw {
namespace {

struct Case {
    const char* name;        // of the primitive
    const char* expression;  // of unsigned type
};
constexpr const char* Other = "tw::bits_float(tw::float_bits(x) * 2654435761u)";  // some other float

const Case Cases[] = {
    {"to_f16", "tw::to_f16(x).bits"},
    {"to_bf16", "tw::to_bf16(x).bits"},
    {"to_e4m3", "tw::to_e4m3(x).bits"},
    {"to_e5m2", "tw::to_e5m2(x).bits"},
    {"narrow_pair_e4m3",
     "[=] { float two[2] = {x, other}; tw::e4m3 pair[2]; tw::narrow_pair(pair, two); "
     "return pair[0].bits | (unsigned)pair[1].bits << 8; }()"},
    {"narrow_pair_e5m2",
     "[=] { float two[2] = {x, other}; tw::e5m2 pair[2]; tw::narrow_pair(pair, two); "
     "return pair[0].bits | (unsigned)pair[1].bits << 8; }()"},
    {"narrow_pair_i8",
     "[=] { float two[2] = {x, other}; signed char pair[2]; tw::narrow_pair(pair, two); "
     "return (unsigned char)pair[0] | (unsigned)(unsigned char)pair[1] << 8; }()"},
    {"narrow_pair_u8",
     "[=] { float two[2] = {x, other}; unsigned char pair[2]; tw::narrow_pair(pair, two); "
     "return pair[0] | (unsigned)pair[1] << 8; }()"},
    {"to_tf32", "tw::float_bits(tw::to_tf32(x))"},
    {"truncate_tf32", "tw::float_bits(tw::truncate_tf32(x))"},
    {"to_f32_f16", "same(tw::to_f32(tw::f16{(unsigned short)tw::float_bits(x)}))"},
    {"to_f32_bf16", "same(tw::to_f32(tw::bf16{(unsigned short)tw::float_bits(x)}))"},
    {"to_f32_e4m3", "tw::float_bits(tw::to_f32(tw::e4m3{(unsigned char)tw::float_bits(x)}))"},
    {"to_f32_e5m2", "tw::float_bits(tw::to_f32(tw::e5m2{(unsigned char)tw::float_bits(x)}))"},
    {"to_i32", "(unsigned)tw::to_i32(x)"},
    {"to_i32", "(unsigned)tw::to_i32(x * 1.000000001)"},
    {"to_u32", "tw::to_u32(x)"},
    {"to_u32", "tw::to_u32(x * 1.000000001)"},
    {"to_i64", "(unsigned)(tw::to_i64(x) >> 32 ^ tw::to_i64(x))"},
    {"to_i64", "(unsigned)(tw::to_i64(x * 1.000000001) >> 32 ^ tw::to_i64(x * 1.000000001))"},
    {"to_i8", "(unsigned char)tw::to_i8(x)"},
    {"to_u8", "tw::to_u8(x)"},
    {"round_to_i32", "(unsigned)tw::round_to_i32(x)"},
    {"round_to_i8", "(unsigned char)tw::round_to_i8(x)"},
    {"round_to_u8", "tw::round_to_u8(x)"},
    {"log_f32", "same(tw::log(x))"},
    {"log2_f32", "same(tw::log2(x))"},
    {"sqrt", "same(tw::sqrt(x))"},
    {"sqrt", "same((float)tw::sqrt((double)x))"},
    {"rsqrt", "same(tw::rsqrt(x))"},
    {"floor", "same(tw::floor(x))"},
    {"ceil", "same(tw::ceil(x))"},
    {"round", "same(tw::round(x))"},
    {"abs", "same(tw::abs(x))"},
    {"fma", "same(tw::fma(x, other, -x * other))"},
    {"min", "same(tw::min(x, other))"},
    {"min", "same(tw::min(-x, x))"},
    {"min", "same((float)tw::min((double)x, (double)other))"},
    {"max", "same(tw::max(x, other))"},
    {"max", "same(tw::max(-x, x))"},
    {"max", "same((float)tw::max((double)x, (double)other))"},
    {"floor_div",
     "(unsigned)tw::floor_div((int)tw::float_bits(x) / 2, (int)(tw::float_bits(other) & 0xffff) - 32768 | 1)"},
    {"floor_mod",
     "(unsigned)tw::floor_mod((int)tw::float_bits(x) / 2, (int)(tw::float_bits(other) & 0xffff) - 32768 | 1)"},
};

/// `other` is another float, `same` gives all NaN the same bits.
std::string completed(const Case& one) {
    std::string text = one.expression;
    for (size_t at; (at = text.find("same(")) != std::string::npos;) {
        std::string inner = text.substr(at + 5, text.size() - at - 6);
        text = fmt::format("({0}) != ({0}) ? 0x7fffffffu : tw::float_bits({0})", inner);
    }
    for (size_t at = 0; (at = text.find("other", at)) != std::string::npos; at += std::string(Other).size())
        text.replace(at, 5, Other);
    return text;
}

TEST(Conformance, TheGpuAndTheEmulatorAgree) {
    if (best_device().device->kind() != DeviceKind::Cuda) GTEST_SKIP() << best_device().reason;
    auto cuda = open_device("cuda"), emulated = open_device("emulated");
    std::vector<float> xs = telling_floats();
    for (const Case& one : Cases) {
        EXPECT_FALSE(device::is_approximate(one.name));
        std::vector<uint32_t> expected = apply(*cuda, {one.name, "bits"}, completed(one), xs),
                              result = apply(*emulated, {one.name, "bits"}, completed(one), xs);
        for (size_t i = 0; i < xs.size(); ++i)
            if (result[i] != expected[i]) {
                ADD_FAILURE() << fmt::format("{}, x = {:a}: {:#x} on the GPU, {:#x} in the emulator", one.expression,
                                             xs[i], expected[i], result[i]);
                break;
            }
    }
}

/// On any machine: the texts of the cases compile and run.
TEST(Conformance, CasesRunInTheEmulator) {
    std::set<std::string> names{"bits"};
    std::string all = "0u";
    for (const Case& one : Cases) {
        names.insert(one.name);
        all += fmt::format(" ^ ({})", completed(one));
    }
    EXPECT_EQ(apply(*open_device("emulated"), names, all, {1.5f, -0.0f}).size(), 2u);
}

}  // namespace
}  // namespace tw

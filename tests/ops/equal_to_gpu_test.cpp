// Products on tensor cores: a GPU gives, bit for bit, what the emulator gives for the same random operands, and gives
// it every time.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/driver/emulated_device.h"
#include "schedules/tensor_product_names.h"

namespace tw {
namespace {

/// Both units; each type, transposition and form of tiling; one warp and several; ragged and even; many tiles a block.
const char* const Names[] = {
    // mma.sync
    "gemm_bf16_37x50x61_ta",
    "gemm_bf16_70x45x90_tile32x32x32w16x16s3",
    "gemm_bf16_96x80x112_ta_tile64x32x32w32x16s4",
    "gemm_bf16_64x72x80_tb_tile32x24x16w16x8s3r",
    "gemm_bf16_45x24x70_ta_tb_tile32x16x32w16x8s4r",
    "gemm_bf16_1x40x96_tb_bias_tile16x32x32w16x8s3",
    "gemm_bf16_3x33x20x40_tb_f32_tile32x16x32w16x16s2",
    "gemm_bf16_20x24x100_tile16x16x16w16x8s2p3",
    "gemm_bf16_37x33x61_tb_pad_tile32x32x32w16x16s3",
    "gemm_bf16_40x48x72_bias_gelu_tile32x32x16w16x16s2",
    "gemm_f16_33x21x43_ta_f32_pad",
    "gemm_f16_40x48x48_tb_bias_tile32x32x16w32x16s3r",
    "gemm_f16_100x16x500_tile64x16x64w32x8s2h1",
    "gemm_i8_40x24x80_tb_tile32x16x32w16x16s3",
    "gemm_i8_20x33x50",
    "gemm_e4m3_40x24x96_tb_tile32x16x32w16x8s3",
    "gemm_e4m3_33x20x50",
    "gemm_e5m2_40x24x96_tb_f32_tile32x16x64w16x8s3",
    // wgmma: roles always, blocks take tiles in turn
    "gemm_bf16_130x96x200_tb_tile128x64x64g2s3r",
    "gemm_bf16_128x72x96_tile64x64x32g1s3",
    "gemm_bf16_136x64x96_ta_tile64x64x32g1s3r",
    "gemm_bf16_128x64x104_ta_tb_tile64x64x32g1s4",
    "gemm_bf16_256x64x128_tb_tile64x32x64g1c2s3r",
    "gemm_bf16_320x48x64_ta_tile64x48x32g1c4s3r",
    "gemm_bf16_200x250x256_tb_tile64x64x64g1c2x4s3r",
    "gemm_f16_392x192x136_tb_bias_tile128x64x64g2c1x2s3rb",
    "gemm_bf16_1280x256x96_tb_tile64x16x32g1u2s3r",
    "gemm_bf16_640x256x96_tile64x16x32g1s3",
    "gemm_bf16_1280x264x96_tb_bias_tile64x16x32g1u2s3rb",
    "gemm_bf16_640x320x256_tb_lower_tile64x16x32g1u2s3r",
    "gemm_bf16_3x136x64x256_tb_masked_tile128x64x64g2s3",
    "gemm_f16_136x72x520_tb_tile128x72x64g2s4rb",
    "gemm_bf16_1280x256x96_tb_bias_tile64x128x32g1u2s3r64b",
    "gemm_bf16_264x200x136_tb_bias_gelu_tanh_tile128x128x64g2c2s3r64b",
    "gemm_bf16_192x256x128_tb_swiglu_tile64x256x64g1u2s3r64b",
    "gemm_i8_136x160x256_tb_tile128x96x128g2s3r32b",
    "gemm_bf16_320x96x256_tb_tile64x48x64g1c2s3rb",
    "gemm_bf16_64x48x512_tb_tile64x48x64g1s3p4",
    "gemm_bf16_16x128x256_tb_tile16x64x64g1s4rt",
    "gemm_bf16_8x192x512_tb_bias_tile8x64x64g1s4p2t",
    "gemm_bf16_3x64x48x64_tb_f32_tile64x48x32g1s2",
    "gemm_bf16_100x61x77_tb_pad_tile64x32x32g1s3r",
    "gemm_bf16_192x64x72_tb_bias_gelu_tile64x64x32g1s3r",
    "gemm_f16_128x64x96_bias_tile128x64x32g2s3r",
    "gemm_f16_136x72x520_ta_tb_tile128x72x64g2s4r",
    "gemm_i8_128x64x160_tb_tile64x64x64g1s3r",
    "gemm_e4m3_128x32x512_tb_tile64x32x128g1k256s3r",
    "gemm_e4m3_128x64x256_tb_f32_tile64x64x64g1s3",
    "gemm_e4m3_1280x256x256_tb_tile64x16x32g1u2k64s4r",
    "gemm_e5m2_72x48x256_tb_tile64x48x128g1k128s3r",
};

Schedule schedule_of(std::string name) {
    const size_t at = name.find("_e5m2_");  // no kernel is called so, but shapes have the type
    if (at != std::string::npos) name.replace(at, 6, "_e4m3_");
    auto named = schedules::parse_tensor_product(name);
    EXPECT_TRUE(named) << name;
    if (at != std::string::npos) named->shape.operand = e5m2;
    const Target hopper = target("sm_90a");
    return schedules::tensor_product_schedule(schedules::declare_tensor_product(named->shape),
                                              named->tiling.value_or(schedules::best_tiling(named->shape, hopper)),
                                              hopper);
}

/// Numbers of many sizes, so that sums round: a tenth of them zeros, exponents up to `spread` around 0. Bytes: all.
Bindings random_operands(const Schedule& schedule, int spread, unsigned seed) {
    Bindings bindings = random_bindings(schedule.outputs(), seed);
    std::mt19937_64 random(seed);
    for (auto& [name, array] : bindings.inputs) {
        if (!is_float(array.type)) {
            fill_integers(array, -128, 127, random());
            continue;
        }
        std::vector<int64_t> indices(array.shape.size(), 0);
        do {
            const double size = std::ldexp(double(random() >> 11), -53), sign = random() % 2 ? -1 : 1;
            const int exponent = int(random() % uint64_t(2 * spread + 1)) - spread;
            array.set(indices, make_value(array.type, random() % 10 ? sign * std::ldexp(1 + size, exponent) : 0.0));
        } while (advance(indices, array.shape));
    }
    return bindings;
}

class EqualToGpu : public testing::TestWithParam<const char*> {};

TEST_P(EqualToGpu, EmulatorIsAsExactAsDeclared) {
    Schedule schedule = schedule_of(GetParam());
    Executable emulated(build(schedule), open_device("emulated"));
    Bindings bindings = random_operands(schedule, 2, 5);
    const bool few_bits = std::string(GetParam()).find("_e4m3_128x64x256_") != std::string::npos;
    CheckResult check = check_output(
        schedule.outputs()[0], bindings, run_on(emulated, bindings)[0],
        {.approximate = emulated.program().approximate(), .roundings = schedule.roundings(), .few_bits = few_bits});
    EXPECT_TRUE(check.ok) << check.text;
    EXPECT_TRUE(!few_bits || check.error < 0x1p-10) << check.text;
}

TEST_P(EqualToGpu, Bytes) {
    if (best_device().device->kind() != DeviceKind::Cuda) GTEST_SKIP() << best_device().reason;
    Schedule schedule = schedule_of(GetParam());
    Program program = build(schedule);
    Executable emulated(program, open_device("emulated")), cuda(program, open_device("cuda"));
    // gelu calls a named approximation, whose bits are the GPU's own: 2 ulp each, in chains of a few; the result may
    // then round to the neighbour of a 16-bit type. All else is arithmetic that the emulator models.
    const Match match = program.approximate() ? near(1, 1e-6) : bitwise;
    for (int spread : {0, 2, 6}) {
        Bindings bindings = random_operands(schedule, spread, unsigned(spread + 1));
        HostArray got = run_on(cuda, bindings)[0], expected = run_on(emulated, bindings)[0];
        auto differs = difference("c", got, expected, match);
        EXPECT_FALSE(differs) << *differs << ", exponents up to " << spread << "\n" << program.cuda();
        EXPECT_TRUE(program.approximate() || got.bytes == expected.bytes);
    }
}

INSTANTIATE_TEST_SUITE_P(Products, EqualToGpu, testing::ValuesIn(Names), [](const auto& info) { return info.param; });

void expect_equal_runs(const char* name, const std::string& device, int repeats) {
    Schedule schedule = schedule_of(name);
    Executable executable(build(schedule), open_device(device));
    Bindings bindings = random_operands(schedule, 2, 3);
    const HostArray first = run_on(executable, bindings)[0];
    for (int n = 1; n < repeats; ++n) {
        if (device == "emulated") as_emulated(*executable.device()).set_options({.seed = uint64_t(n)});
        ASSERT_EQ(run_on(executable, bindings)[0].bytes, first.bytes) << "run " << n << " of " << name;
    }
}

constexpr const char* Repeated[] = {
    "gemm_bf16_320x96x520_tb_tile64x48x64g1c2s3r",   "gemm_bf16_300x384x520_tb_tile64x64x64g1c2x4s4r",
    "gemm_bf16_1280x256x96_tb_tile64x16x32g1u2s3r",  "gemm_e4m3_1280x256x256_tb_tile64x16x32g1u2k64s4r",
    "gemm_bf16_1280x256x96_tb_tile64x16x32g1u2s3rb", "gemm_f16_100x72x200_tile32x32x32w16x16s3p2"};

TEST(Repeats, OfTheGpuGiveTheSameBits) {
    if (best_device().device->kind() != DeviceKind::Cuda) GTEST_SKIP() << best_device().reason;
    for (const char* name : Repeated) expect_equal_runs(name, "cuda", 200);
}

TEST(Repeats, OfTheEmulatorGiveTheSameBitsInEveryOrder) {
    for (const char* name : Repeated) expect_equal_runs(name, "emulated", 5);
}

}  // namespace
}  // namespace tw

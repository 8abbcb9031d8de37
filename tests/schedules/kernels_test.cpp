// Every kernel of the catalog: the emulator and, where there is one, the GPU give what the schedule's tree gives, bit
// for bit unless the kernel uses a named approximation (those on tensor cores on whole numbers); every run of it gives
// the same bits; and it compiles for every target without spills.
//
// TW_REPEATS sets the number of runs: 200 on the GPU unless given, 4 on the emulator, each of which takes blocks and
// warps in another order.
#include <cstdlib>
#include <regex>

#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/driver/emulated_device.h"
#include "schedules/catalog.h"
#include "schedules/tensor_product_names.h"

namespace tw {
namespace {

std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const auto& entry : schedules::catalog()) all.push_back(entry.name);
    return all;
}

int num_repeats(const Device& device, double flops) {
    if (const char* given = std::getenv("TW_REPEATS")) return std::atoi(given);
    if (device.kind() == DeviceKind::Cuda) return 200;
    return flops > 2e6 ? 1 : 4;  // each schedule has smaller entries
}

/// They add terms in an order of their own.
bool uses_matrix_units(const Program& program) {
    std::string cuda = program.cuda();
    return cuda.find("tw::mma_") != std::string::npos || cuda.find("tw::wgmma_m64") != std::string::npos;
}

/// Small enough for all sums to be exact, in any order.
Bindings whole_numbers(Bindings bindings) {
    uint64_t seed = 0;
    for (auto& [name, array] : bindings.inputs)
        if (array.type != i32) fill_integers(array, -4, 4, ++seed);  // those that choose matrices stay
    return bindings;
}

class Kernels : public testing::TestWithParam<std::string> {
protected:
    void expect_equal_bits(Executable& executable, const Bindings& bindings, const std::vector<HostArray>& first,
                           int repeats) {
        Device& device = *executable.device();
        for (int n = 1; n < repeats; ++n) {
            if (device.kind() == DeviceKind::Emulated) as_emulated(device).set_options({.seed = uint64_t(n)});
            std::vector<HostArray> got = run_on(executable, bindings);  // into new memory that holds NaN
            for (size_t k = 0; k < got.size(); ++k)
                ASSERT_EQ(got[k].bytes, first[k].bytes) << "run " << n << " of\n" << executable.program().cuda();
        }
    }

    void compare_on(const std::shared_ptr<Device>& device, const std::string& arch) {
        const schedules::CatalogEntry& entry = *schedules::find_kernel(GetParam());
        Schedule schedule = entry.make(target(arch));
        Program program = build(schedule);
        bool approximate = program.approximate(), reorders = uses_matrix_units(program);
        Bindings bindings = random_bindings(schedule.outputs(), 17),
                 exact = reorders ? whole_numbers(bindings) : bindings;
        std::vector<HostArray> expected = interpret_tree(schedule.tree(), exact);
        Executable executable(program, device);
        std::vector<HostArray> got = run_on(executable, exact);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t k = 0; k < got.size(); ++k) {
            // Approximations: 2 ulp each in chains of a few, bf16 results may then round to the neighbour.
            // Atomics add in any order.
            Match match = bitwise;
            if (approximate) match = near(bytes_of(got[k].type) == 4 ? 16 : 1, 1e-6);
            if (!schedule.deterministic()) match = near(1024, 1e-4);
            auto differs = difference(schedule.outputs()[k].name(), got[k], expected[k], match);
            EXPECT_FALSE(differs) << *differs << "\n" << program.cuda();
        }
        if (reorders) got = run_on(executable, bindings);
        for (size_t k = 0; k < got.size(); ++k) {
            CheckResult check = check_output(
                schedule.outputs()[k], bindings, got[k],
                {.approximate = approximate, .roundings = schedule.roundings(), .rounded = schedule.rounded()});
            EXPECT_TRUE(check.ok) << check.text;
        }
        if (schedule.deterministic()) expect_equal_bits(executable, bindings, got, num_repeats(*device, entry.flops));
    }
};

TEST_P(Kernels, EmulatorAgreesWithTheTree) { compare_on(open_device("emulated"), "sm_90a"); }

TEST_P(Kernels, GpuAgreesWithTheTree) {
    std::shared_ptr<Device> device;
    try {
        device = open_device("cuda");
    } catch (const Error& error) {
        GTEST_SKIP() << "no GPU: " << error.what();
    }
    compare_on(device, device->arch());
}

/// A block that starts early must not touch memory that kernels before it may still write or read.
void expect_wait_before_memory(const std::string& ptx) {
    static const std::regex access(R"(\b(ld|st|atom|red|cp\.async)(\.\w+)*\.global\b)");
    std::smatch first;
    ASSERT_TRUE(std::regex_search(ptx, first, access)) << ptx;
    size_t wait = ptx.find("griddepcontrol.wait;");
    EXPECT_LT(wait, static_cast<size_t>(first.position())) << ptx;
}

/// Tiles of warpgroups that a name asks for are Hopper's alone; fp8 is younger than sm_80.
std::vector<const char*> architectures_of(const std::string& name) {
    auto named = schedules::parse_tensor_product(name);
    if (named && named->tiling && std::holds_alternative<schedules::WarpgroupTiles>(*named->tiling)) return {"sm_90a"};
    if (named && named->shape.operand == e4m3) return {"sm_90a", "sm_100a", "sm_120a"};
    return {"sm_80", "sm_90a", "sm_100a", "sm_120a"};
}

TEST_P(Kernels, CompilesEverywhereWithoutSpills) {
    for (const char* arch : architectures_of(GetParam())) {
        bool starts_early = target(arch).has_programmatic_launch;
        Program program = build(schedules::find_kernel(GetParam())->make(target(arch)));
        for (const auto& kernel : program.kernels()) {
            try {
                CompiledKernel compiled = compile_kernel({.source = kernel.cuda,
                                                          .name = kernel.name + ".cu",
                                                          .arch = arch,
                                                          .options = {},
                                                          .want_ptx = starts_early});
                if (starts_early) expect_wait_before_memory(compiled.ptx);
                const Resources& resources = compiled.of(kernel.name);
                EXPECT_EQ(resources.spill_store_bytes + resources.spill_load_bytes, 0) << arch;
                EXPECT_LE(resources.registers, 255) << arch;
            } catch (const NvrtcMissing& missing) {
                GTEST_SKIP() << missing.what();
            }
        }
    }
}

/// Too large to run on the emulator: the shapes of docs/performance.md, and rows as long as registers allow.
TEST(LargeKernels, CompileWithoutSpills) {
    for (const char* name : {"softmax_16384x8192_bf16",
                             "layernorm_16384x8192_bf16",
                             "rmsnorm_16384x768_bf16",
                             "layernorm_4096x32768_bf16",
                             "layernorm_4096x32768_f32",
                             "softmax_8x1000000_bf16",
                             "column_sum_16384x8192_bf16",
                             "dot_268435456_f32",
                             "similarity_1048576x1024_bf16",
                             "transpose_8192x8192_bf16",
                             "gelu_bias_16384x8192_bf16",
                             "adamw_124000000_f32",
                             "gemm_bf16_8192x8192x8192_tb",
                             "gemm_bf16_8192x8192x8192_ta_bias_gelu",
                             "gemm_bf16_4095x4097x4093_tb",
                             "gemm_i8_8192x8192x8192_tb",
                             "gemm_tf32_8192x8192x8192_tb",
                             "gemm_tf32_8192x8192x8192_ta",
                             "linear_cross_entropy_bf16_16384x768x50304",
                             "linear_cross_entropy_bf16_4096x4096x50264",
                             "linear_cross_entropy_gradients_bf16_16384x768x50304",
                             "attention_bf16_2x16x4096x64_causal",
                             "attention_gradients_bf16_2x16x4096x128_softcap30_documents_bias",
                             "attention_gradients_bf16_2x16x4096x64_softcap30a",
                             "attention_bf16_2x16x8192x64_causal",
                             "attention_bf16_1x16x16384x64_causal",
                             "attention_bf16_1x16x16384x64",
                             "attention_bf16_2x16x4096x128",
                             "attention_bf16_2x16x4096x128_causal",
                             "attention_bf16_1x8x4096x256",
                             "attention_bf16_2x8x4096x256_causal",
                             "attention_bf16_1x16x16384x256_causal",
                             "attention_bf16_2x8x1000x256_causal",
                             "attention_e4m3_4x16x4096x128_causal",
                             "attention_e4m3_2x32x8192x64",
                             "attention_e4m3_2x8x8192x256_causal"}) {
        Program program = build(schedules::find_kernel(name)->make(target("sm_90a")));
        for (const auto& kernel : program.kernels()) {
            try {
                CompiledKernel compiled = compile_kernel(
                    {.source = kernel.cuda, .name = kernel.name + ".cu", .arch = "sm_90a", .options = {}});
                const Resources& resources = compiled.of(kernel.name);
                EXPECT_EQ(resources.spill_store_bytes + resources.spill_load_bytes, 0) << name;
            } catch (const NvrtcMissing& missing) {
                GTEST_SKIP() << missing.what();
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Catalog, Kernels, testing::ValuesIn(names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tw

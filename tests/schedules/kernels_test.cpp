// Every kernel of the catalog: the emulator and, where there is one, the GPU give what the schedule's tree gives, bit for
// bit unless the kernel uses a named approximation; and it compiles for every target without spills.
#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "schedules/catalog.h"

namespace tw {
namespace {

std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const auto& entry : schedules::catalog()) all.push_back(entry.name);
    return all;
}

class Kernels : public testing::TestWithParam<std::string> {
protected:
    void compare_on(const std::shared_ptr<Device>& device, const std::string& arch) {
        const schedules::CatalogEntry& entry = *schedules::find_kernel(GetParam());
        Schedule schedule = entry.make(target(arch));
        Program program = build(schedule);
        bool approximate = false;
        for (const auto& kernel : program.kernels()) approximate |= kernel.approximate;
        Bindings bindings = random_bindings(schedule.outputs(), 17);
        std::vector<HostArray> expected = interpret_tree(schedule.tree(), bindings);
        Executable executable(program, device);
        std::vector<HostArray> got = run_on(executable, bindings);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t k = 0; k < got.size(); ++k) {
            // Approximations: 2 ulp each in chains of a few, bf16 results may then round to the neighbour.
            Match match = approximate ? near(bytes_of(got[k].type) == 4 ? 16 : 1, 1e-6) : bitwise;
            auto differs = difference(schedule.outputs()[k].name(), got[k], expected[k], match);
            EXPECT_FALSE(differs) << *differs << "\n" << program.cuda();
            CheckResult check = check_output(schedule.outputs()[k], bindings, got[k], approximate);
            EXPECT_TRUE(check.ok) << check.text;
        }
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

TEST_P(Kernels, CompilesEverywhereWithoutSpills) {
    for (const char* arch : {"sm_80", "sm_90a", "sm_100a", "sm_120a"}) {
        Program program = build(schedules::find_kernel(GetParam())->make(target(arch)));
        for (const auto& kernel : program.kernels()) {
            try {
                CompiledKernel compiled = compile_kernel({.source = kernel.cuda, .name = kernel.name + ".cu", .arch = arch, .options = {}});
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
    for (const char* name :
         {"softmax_16384x8192_bf16", "layernorm_16384x8192_bf16", "rmsnorm_16384x768_bf16", "layernorm_4096x32768_bf16",
          "layernorm_4096x32768_f32", "softmax_8x1000000_bf16", "column_sum_16384x8192_bf16", "dot_268435456_f32",
          "similarity_1048576x1024_bf16", "transpose_8192x8192_bf16", "gelu_bias_16384x8192_bf16", "adamw_124000000_f32"}) {
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

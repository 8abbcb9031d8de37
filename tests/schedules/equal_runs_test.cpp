// Reductions of one pass give the same bits in every run, whatever order blocks and threads come in.
#include <cmath>

#include <gtest/gtest.h>

#include "dsl/check_bindings.h"
#include "ops/bound_arguments.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/driver/arch.h"
#include "runtime/driver/emulated_device.h"
#include "schedules/catalog.h"

namespace tw::schedules {
namespace {

/// A kernel with work for all multiprocessors of a GPU, and one of its kind that the emulator runs soon.
struct Repeated {
    const char *on_gpu, *emulated;
    size_t kernels;  ///< at least, of one run
};

const Repeated Cases[] = {
    {"attention_bf16_1x8x1000x128", "attention_bf16_1x1x200x128", 1},
    {"attention_bf16_1x16x500x64_causal", "attention_bf16_1x2x150x64_causal", 1},
    {"attention_bf16_1x8x512x256_group4_causal", "attention_bf16_1x4x70x32_group4_causal", 1},
    // Gradients whose kernels make scores again, and such that keep their adjoints.
    {"attention_gradients_bf16_1x16x500x64_causal", "attention_gradients_bf16_1x1x150x64_causal", 3},
    {"attention_gradients_bf16_1x8x1000x128", "attention_gradients_bf16_1x1x136x72", 3},
    {"linear_cross_entropy_bf16_500x256x4000", "linear_cross_entropy_bf16_70x40x72", 2},
    {"linear_cross_entropy_gradients_bf16_500x256x4000", "linear_cross_entropy_gradients_bf16_70x40x72", 3},
    {"cross_entropy_2000x2051_bf16", "cross_entropy_3x2051_bf16", 1},
    {"cross_entropy_50x50257_bf16", "cross_entropy_2x9001_f32", 1},
    {"cross_entropy_gradient_2000x2051_bf16", "cross_entropy_gradient_3x2051_bf16", 1},
    // Keys in parts.
    {"attention_bf16_1x32x1x128_keys8192_group4", "attention_bf16_1x4x1x64_keys1000_group4", 2},
};

/// A kernel with its data on a device, run again and again.
class Repeater {
public:
    Repeater(const char* name, const std::string& device)
        : schedule_(find_kernel(name)->make(target("sm_90a"))),
          executable_(build(schedule_), open_device(device)),
          bindings_(random_bindings(schedule_.outputs(), 3)),
          arguments_{.buffers = {}, .sizes = bindings_.sizes, .scalars = bindings_.scalars} {
        const Tree& tree = executable_.program().tree();
        for (const BufferRef& input : tree.inputs) allocate(*input);
        for (const BufferRef& output : tree.outputs)
            if (const std::string& name = name_of_memory(tree, output); name == output->name) allocate(*output);
        executable_.bind(arguments_);
    }

    size_t num_kernels() const { return executable_.kernels().size(); }
    Device& device() const { return *executable_.device(); }

    /// All results, from outputs that start as NaN.
    std::vector<std::vector<uint8_t>> run() {
        for (auto& [name, buffer] : arguments_.buffers)
            if (auto input = bindings_.inputs.find(name); input == bindings_.inputs.end())
                buffer.fill(0xff);
            else
                buffer.copy_from_host(input->second.bytes.data());
        executable_.run();
        device().synchronize();
        std::vector<std::vector<uint8_t>> results;
        const Tree& tree = executable_.program().tree();
        for (const BufferRef& output : tree.outputs)
            results.push_back(arguments_.buffers.at(name_of_memory(tree, output)).read<uint8_t>());
        return results;
    }

    size_t num_nans() {
        size_t count = 0;
        for (const HostArray& result : run_on(executable_, bindings_)) {
            std::vector<int64_t> at(result.shape.size());
            do count += is_float(result.type) && std::isnan(result.at(at).real);
            while (advance(at, result.shape));
        }
        executable_.bind(arguments_);
        return count;
    }

private:
    void allocate(const BufferNode& buffer) {
        arguments_.buffers[buffer.name] = device().allocate(bytes_spanned(buffer, bindings_), buffer.name);
    }

    Schedule schedule_;
    Executable executable_;
    Bindings bindings_;
    Arguments arguments_;
};

void expect_equal_runs(const char* name, const std::string& device, size_t kernels, int runs) {
    ASSERT_TRUE(find_kernel(name)) << name;
    Repeater repeater(name, device);
    EXPECT_GE(repeater.num_kernels(), kernels) << name;
    EXPECT_EQ(repeater.num_nans(), 0U) << name;
    const auto first = repeater.run();
    for (int run = 1; run < runs; ++run) {
        if (device == "emulated") as_emulated(repeater.device()).set_options({.seed = static_cast<uint64_t>(run)});
        ASSERT_TRUE(repeater.run() == first) << "run " << run << " of " << name;
    }
}

class EqualRuns : public testing::TestWithParam<Repeated> {};

TEST_P(EqualRuns, OfTheGpu) {
    if (best_device().device->kind() != DeviceKind::Cuda) GTEST_SKIP() << best_device().reason;
    if (target_of(*best_device().device).arch != "sm_90a") GTEST_SKIP() << "the kernels are made for sm_90a";
    expect_equal_runs(GetParam().on_gpu, "cuda", GetParam().kernels, 1000);
}

TEST_P(EqualRuns, OfTheEmulatorInEveryOrder) {
    expect_equal_runs(GetParam().emulated, "emulated", GetParam().kernels, 3);
}

INSTANTIATE_TEST_SUITE_P(Kernels, EqualRuns, testing::ValuesIn(Cases),
                         [](const auto& info) { return std::string(info.param.emulated); });

}  // namespace
}  // namespace tw::schedules

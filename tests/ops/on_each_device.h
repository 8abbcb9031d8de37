// Tests that run on the emulator and, where there is one, on the GPU.
#pragma once
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "ops/executable.h"
#include "runtime/driver/arch.h"

namespace tw {

/// The parameter is a device's name, "emulated" or "cuda"; without a GPU the latter is skipped, with the reason.
class OnEachDevice : public testing::TestWithParam<std::string> {
protected:
    void SetUp() override {
        try {
            device_ = open_device(GetParam());
        } catch (const RuntimeError& error) {
            GTEST_SKIP() << "no device '" << GetParam() << "': " << error.what();
        }
    }

    Target device_target() const { return target_of(*device_); }

    /// The kernels give what the declaration says, bit for bit where `match` does not allow more.
    void expect_declared(Executable& executable, const std::vector<Tensor>& outputs, const Bindings& bindings,
                         const Match& match = bitwise) const {
        std::vector<HostArray> got = run_on(executable, bindings), expected = interpret_plain(outputs, bindings);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t k = 0; k < got.size(); ++k) {
            auto differs = difference(outputs[k].name(), got[k], expected[k], match);
            EXPECT_FALSE(differs) << *differs << "\n" << executable.program().cuda();
        }
    }

    void expect_declared(const Schedule& schedule, const Bindings& bindings, const Match& match = bitwise) const {
        Executable executable(build(schedule), device_);
        expect_declared(executable, schedule.outputs(), bindings, match);
    }

    std::shared_ptr<Device> device_;
};

#define TW_ON_EACH_DEVICE(suite)                                                 \
    INSTANTIATE_TEST_SUITE_P(Device, suite, testing::Values("emulated", "cuda"), \
                             [](const auto& info) { return info.param; })

}  // namespace tw

// Tests that run on the emulator and, where there is one, on the GPU.
#pragma once
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "runtime/driver/driver.h"

namespace tw {

/// The parameter is a device's name, "emulated" or "cuda"; without a GPU the latter is skipped, with the reason.
class OnDevice : public testing::TestWithParam<std::string> {
protected:
    void SetUp() override {
        try {
            device_ = open_device(GetParam());
        } catch (const RuntimeError& error) {
            GTEST_SKIP() << "no device '" << GetParam() << "': " << error.what();
        }
    }

    std::shared_ptr<Device> device_;
};

#define TW_ON_EACH_DEVICE(suite)                                                 \
    INSTANTIATE_TEST_SUITE_P(Device, suite, testing::Values("emulated", "cuda"), \
                             [](const auto& info) { return info.param; })

}  // namespace tw

// Programs that run on the emulator and, where there is one, on the GPU.
#pragma once
#include "dsl/interpret.h"
#include "ops/executable.h"
#include "runtime/driver/arch.h"
#include "tests/support/on_device.h"

namespace tw {

class OnEachDevice : public OnDevice {
protected:
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
};

}  // namespace tw

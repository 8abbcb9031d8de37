// A schedule's kernels beside what they are declared to compute.
#pragma once
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "ops/program.h"
#include "ops/runner.h"

namespace tw::schedules {

/// Its results are those of the declaration, on the emulator and random data.
inline void expect_right(const Schedule& s, std::optional<Bindings> bindings = {}) {
    Runner runner(s, open_device("emulated"));
    runner.set(bindings ? *bindings : random_bindings(s.outputs(), std::random_device()()));
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text << "\n" << build(s).cuda();
}

}  // namespace tw::schedules

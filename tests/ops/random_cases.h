// Tests of random cases on each device.
#pragma once
#include <random>

#include "tests/ops/on_each_device.h"

namespace tw {

class RandomCases : public OnEachDevice {
protected:
    explicit RandomCases(unsigned seed) : random_(seed) {}

    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
    bool chance() { return between(0, 1) == 1; }
    /// Also where there is no GPU, if there is NVRTC.
    static void expect_compiles(const Program& program) {
        try {
            Executable(program, open_device("null:sm_90a"));
        } catch (const NvrtcMissing&) {
        }
    }

private:
    std::mt19937 random_;
};

}  // namespace tw

// The tuner's search space of convolutions: what it holds builds within the target's limits, and texts tell it.
#include "schedules/convolution_space.h"

#include <algorithm>
#include <set>

#include "ops/program.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {
namespace {

TEST(Probe, All) {
    const Target h200 = target("sm_90a");
    for (const char* layer : {"256x56x56x64_64_3x3_pad1", "256x56x56x256_512_1x1_stride2", "8x64x64x320_320_3x3_pad1",
                              "256x7x7x2048_512_1x1", "3x5x9x24_40_3x2_pad3_dilation3", "64x14x14x8_16_1x1",
                              "64x9x60x256_24_3x1_stride2_pad2", "2x5x9x16_24_3x3_pad1_dilation2",
                              "32x64x64x3_64_7x7_stride2_pad3", "64x28x28x256_256_3x3_pad1_groups16", "31x47x41x283_397_3x3_pad1"})
        for (const char* pass : {"", "_data_gradient", "_weight_gradient"}) {
            const std::string name = std::string("convolution") + pass + "_bf16_" + layer;
            const auto named = parse_convolution(name);
            auto space = convolution_space(named->shape, named->pass, h200);
            int bad = 0;
            std::string first;
            for (const auto& t : space) try {
                    auto again = parse_convolution_tiling(tiling_text(t));
                    if (!again || *again != t) fmt::print("TEXT {}\n", tiling_text(t));
                    build(convolution_schedule(named->shape, named->pass, t, h200));
                } catch (const std::exception& e) {
                    ++bad;
                    fmt::print("  {} {}\n", tiling_text(t), std::string(e.what()).substr(0, 300));
                }
            std::string text;
            for (size_t k = 0; k < std::min<size_t>(12, space.size()); ++k) text += " " + tiling_text(space[k]);
            fmt::print("{}: {} bad {}: {}\n", name, space.size(), bad, text);
        }
}

}  // namespace
}  // namespace tw::schedules

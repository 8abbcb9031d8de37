#include "ops/kernel_pictures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedules/catalog.h"

namespace tw {
namespace {

using codegen::SignalSpan;
using testing::HasSubstr;

TEST(KernelPictures, TimelinesSayWhatTakesMostOfAColumn) {
    codegen::SignalSimulation simulation;
    simulation.cycles = 100;
    simulation.lanes = {{"math",
                         {{SignalSpan::Kind::Wait, 0, 30},
                          {SignalSpan::Kind::Multiply, 20, 60},
                          {SignalSpan::Kind::Work, 60, 95},
                          {SignalSpan::Kind::Wait, 95, 100}}},
                        {"load", {{SignalSpan::Kind::Load, 10, 50}}}};
    EXPECT_EQ(timeline_picture(simulation, 10),
              "math        |..MMMMwwww|\n"
              "load        | LLLL     |\n");
    EXPECT_EQ(timeline_picture({}), "");
}

TEST(KernelPictures, OfAKernelWithRoles) {
    const auto* entry = schedules::find_kernel("gemm_bf16_512x512x512_tb_tile128x64x64g2s4rb");
    Target target = tw::target("sm_90a");
    auto kernels = kernels_before_printing(entry->make(target).tree(), target);
    ASSERT_EQ(kernels.size(), 1u);
    std::string memory = shared_memory_picture(kernels[0]);
    EXPECT_THAT(memory,
                HasSubstr("a_shared                 [4][128][64]         bf16         65536 bytes   lines of 128"));
    EXPECT_THAT(memory, HasSubstr("[4]                  barriers"));
    EXPECT_THAT(memory, HasSubstr("  line 3:  3 2 1 0 7 6 5 4\n"));
    codegen::SignalSimulation simulation = codegen::simulate_signals(kernels[0], 10000);
    EXPECT_TRUE(simulation.whole);
    std::string picture = timeline_picture(simulation);
    for (const char* part : {"math 1      |", "math 2      |", "load        |", "M", "L", "w"})
        EXPECT_THAT(picture, HasSubstr(part));
}

}  // namespace
}  // namespace tw

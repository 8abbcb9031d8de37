// What a training step computes between and around its products, at small random sizes with tails, against float64.
#include "schedules/fused_training.h"

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/runner.h"
#include "tests/ops/random_cases.h"

namespace tw::schedules {
namespace {

class FusedTraining : public RandomCases {
protected:
    FusedTraining() : RandomCases(53) {}

    /// Extents that end within vectors, blocks and tiles.
    std::vector<int64_t> extents_of(size_t rank) {
        if (rank == 1) return {between(1, 3000)};
        if (rank == 2) return {between(2, 90), between(2, 400)};
        if (rank == 3) return {8 * between(3, 20), 8 * between(3, 20), 8 * between(3, 12)};
        return {between(20, 90), between(3, 30), between(2, 100), between(2, 20)};
    }
    /// Places within tables, and what is no variance below 0.
    static Bindings data_of(const Declared& declared, const std::vector<int64_t>& extents, unsigned seed) {
        Bindings bindings = random_bindings(declared.outputs, seed);
        for (auto& [name, array] : bindings.inputs) {
            if (name == "ids" || name == "label") fill_integers(array, 0, extents[1] - 1, seed);
            if (name == "v") fill_integers(array, 0, 3, seed);
        }
        return bindings;
    }
};
TW_ON_EACH_DEVICE(FusedTraining);

TEST_P(FusedTraining, AgreesWithFloat64) {
    for (const FusedKernel& kernel : fused_kernels())
        for (unsigned round = 0; round < 3; ++round) {
            const std::vector<int64_t> extents = extents_of(kernel.rank);
            const Declared declared = kernel.declare(extents);
            SCOPED_TRACE(fmt::format("{} {}", kernel.name, fmt::join(extents, "x")));
            Runner runner(fused_schedule(declared, device_target()), device_);
            const CheckResult result = runner.set(data_of(declared, extents, 17 + round)).check();
            EXPECT_TRUE(result.ok) << result.text;
        }
}

TEST(FusedTrainingNames, GiveExtents) {
    EXPECT_TRUE(fused_entry("fused_layernorm_backward_32768x768"));
    EXPECT_FALSE(fused_entry("fused_layernorm_backward_32768"));
    EXPECT_FALSE(fused_entry("fused_layernorm_backward_0x768"));
    EXPECT_FALSE(fused_entry("fused_nothing_3x5"));
    EXPECT_FALSE(fused_entry("fused_adamw_3_bf16"));
    const double elements = 32768.0 * 768;
    EXPECT_EQ(fused_entry("fused_layernorm_backward_32768x768")->bytes,
              4 * 2 * elements + 2 * 4 * 32768.0 + (2 + 4 + 4) * 768.0);
}

}  // namespace
}  // namespace tw::schedules

// What bench/compare.py train times, as it is planned for Hopper: which operations are one group, and its kernels.
// TW_UPDATE_GOLDEN=1 writes tests/golden/steps/ anew.
#include "bench/train_steps.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "runtime/driver/arch.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace tw::bench {
namespace {

const Target& hopper() {
    static const Target hopper = target("sm_90a");
    return hopper;
}
std::shared_ptr<Device> device() { return open_device("emulated"); }

/// Without what changes with the model of time: seconds, bytes, places.
std::string groups_text(const StepPlan& plan) {
    std::string text = fmt::format("{} groups, {} of them distinct; {} kernels\n", plan.groups.size(),
                                   plan.num_distinct(), plan.num_kernels());
    for (size_t g = 0; g < plan.groups.size(); ++g) {
        const StepGroup& group = plan.groups[g];
        std::vector<std::string> kernels;
        for (const codegen::KernelText& kernel : group.selection->program.kernels()) kernels.push_back(kernel.name);
        text += fmt::format("group {}: {}\n    {}: {}\n", g, fmt::join(group.operations, ", "), group.selection->why,
                            fmt::join(kernels, ", "));
    }
    return text;
}

struct GoldenStep {
    const char* name;
    Type values;
};
class GoldenSteps : public testing::TestWithParam<GoldenStep> {};

TEST_P(GoldenSteps, AreWhatReviewersHaveRead) {
    const auto& [name, values] = GetParam();
    const StepPlan plan = plan_train_step({.step = name, .values = values}, device(), hopper());
    EXPECT_TRUE(matches_golden(groups_text(plan), fmt::format("steps/{}_{}.txt", name, name_of(values))));
}

INSTANTIATE_TEST_SUITE_P(Train, GoldenSteps,
                         testing::Values(GoldenStep{"mlp", f32}, GoldenStep{"mlp", bf16},
                                         GoldenStep{"feed_forward", bf16}, GoldenStep{"transformer", bf16},
                                         GoldenStep{"residual", bf16}, GoldenStep{"residual_nchw", bf16}),
                         [](const auto& step) {
                             return fmt::format("{}_{}", step.param.name, name_of(step.param.values));
                         });

TEST(TrainSteps, PlansAreThoseOfStepsThatRun) {
    const TrainStepRequest small{.step = "mlp", .sizes = {{"batch", 8}, {"inputs", 16}, {"hidden", 24}}};
    const std::shared_ptr<Device> emulated = device();
    EXPECT_EQ(plan_train_step(small, emulated, target_of(*emulated)).text(false),
              make_train_step(small, emulated).step.plan().text(false));
    for (const char* arch : {"sm_80", "sm_90a"})
        for (const StepGroup& group : plan_train_step(small, emulated, target(arch)).groups)
            EXPECT_EQ(group.selection->program.target().arch, arch);
}

TEST(TrainSteps, RefuseWhatTheyHaveNot) {
    EXPECT_ERROR(plan_train_step({.step = "conv"}, device(), hopper()),
                 "no step named 'conv'; there are [feed_forward, mlp, residual, residual_nchw, transformer]");
    EXPECT_ERROR(plan_train_step({.step = "mlp", .sizes = {{"heads", 2}}}, device(), hopper()),
                 "the step 'mlp' has no size 'heads'; it has");
}

}  // namespace
}  // namespace tw::bench

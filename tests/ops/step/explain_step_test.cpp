// What explain() tells of a step, and that it leaves the step as it was.
#include "ops/step/explain_step.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "tests/ops/step/small_steps.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

using testing::HasSubstr;

class ExplainedSteps : public OnDevice {};
TW_ON_EACH_DEVICE(ExplainedSteps);

TEST_P(ExplainedSteps, AreAsTheyWere) {
    const schedules::Declared declared = step_of_layers(2, 16, 16);
    const PlannedStep step(plan_step(declared, target("sm_90a")), device_);
    const Bindings data = random_bindings(declared.outputs, 3);
    for (const auto& [name, array] : data.inputs) step.set(name, array);
    const std::vector<KernelCost> costs = measured_costs(step, 2);
    for (const auto& [name, array] : data.inputs) EXPECT_EQ(step.get(name).bytes, array.bytes) << name;
    ASSERT_EQ(costs.size(), step.plan().num_kernels());
    for (const KernelCost& cost : costs) EXPECT_GT(cost.measured, 0) << cost.name;
    step.run();
    const HostArray loss = step.get("loss"), weight = step.get("w0");
    EXPECT_NE(weight.bytes, data.inputs.at("w0").bytes);
    const std::string text = explain(step, {.sorted = true, .runs = 1});
    EXPECT_EQ(step.get("loss").bytes, loss.bytes);
    EXPECT_EQ(step.get("w0").bytes, weight.bytes);
    EXPECT_EQ(text.find("emulated") != std::string::npos, device_->kind() == DeviceKind::Emulated) << text;
    EXPECT_ERROR(measured_costs(step, 0), "measured_costs: 0 runs; it takes at least one");
}

TEST(ExplainStep, TellsOfEachKernel) {
    const StepPlan plan = plan_step(step_of_layers(3, 64, 64), target("sm_90a"));
    const std::vector<KernelCost> costs = kernel_costs(plan);
    ASSERT_EQ(costs.size(), plan.num_kernels());
    double seconds = 0;
    const std::string text = explain(plan), sorted = explain(plan, {.sorted = true});
    for (const KernelCost& cost : costs) {
        seconds += cost.seconds;
        EXPECT_GT(cost.bytes, 0);
        EXPECT_THAT(text, HasSubstr(cost.name));
    }
    EXPECT_NEAR(seconds, plan.seconds(), 0.01 * plan.seconds());
    const auto most = std::ranges::max_element(costs, {}, &KernelCost::seconds);
    for (const KernelCost& cost : costs)
        if (cost.seconds < most->seconds && cost.name != most->name) {
            EXPECT_LT(sorted.find(most->name), sorted.find(" " + cost.name + " ")) << sorted;
        }
    EXPECT_EQ(text.find("emulated"), std::string::npos);
}

}  // namespace
}  // namespace tw

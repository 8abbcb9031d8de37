// What 16 bits hold in a step, and what they do not.
#include "ops/step/mixed_precision.h"

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/step/interpret_step.h"
#include "ops/step/planned_step.h"
#include "schedules/normalization.h"
#include "tests/ops/step/small_steps.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const Target& hopper = target("sm_90a");

/// Types of all that has memory of its own between groups.
std::map<std::string, Type> types_of(const StepPlan& plan) {
    std::map<std::string, Type> types;
    for (const StepValue& value : plan.values) types[value.name] = value.type;
    return types;
}

Bindings data_of(const schedules::Declared& step, uint64_t seed) {
    Bindings data = random_bindings(step.outputs, seed);
    for (auto& [name, array] : data.inputs)
        if (array.type == f32) fill_uniform(array, -0.3, 0.3, ++seed);
    return data;
}

double largest(const HostArray& a) {
    double most = 0;
    std::vector<int64_t> at(a.shape.size());
    do most = std::max(most, std::abs(a.at(at).real));
    while (advance(at, a.shape));
    return most;
}
/// Relative to the largest element.
double distance(const HostArray& a, const HostArray& b) {
    double most = 0;
    std::vector<int64_t> at(a.shape.size());
    do most = std::max(most, std::abs(a.at(at).real - b.at(at).real));
    while (advance(at, a.shape));
    return most / largest(b);
}

TEST(MixedPrecision, RoundsWhatProductsReadAndKeepsTheRest) {
    const schedules::Declared step = step_of_blocks(1, 64, 32);
    const MixedStep mixed = mixed_precision(step, {.values = bf16});
    // parameters in copies, activations and adjoints themselves; the last adjoint is an element of the loss alone
    EXPECT_THAT(mixed.rounded, ElementsAre("block0_n_bf16", "block0_up_bf16", "block0_g", "block0_down_bf16",
                                           "d_block0_h", "d_block0_z"));
    const StepPlan plan = plan_step(step, hopper, {}, {.mixed = {.values = bf16}});
    EXPECT_THAT(faults_of(plan), IsEmpty());
    EXPECT_THAT(plan.text(), HasSubstr("rounded for products: block0_n_bf16, block0_up_bf16, "));
    const std::map<std::string, Type> types = types_of(plan);
    for (const char* name : {"block0_z", "block0_g", "d_block0_z", "d_block0_n"})
        EXPECT_EQ(types.at(name), bf16) << name;
    for (const char* name : {"x", "block0_up", "rate", "loss", "next2", "block0_n_mean", "block0_n_variance"})
        EXPECT_EQ(types.at(name), f32) << name;
    for (const StepGroup& group : plan.groups) {  // or they are of f32 and on no tensor cores
        if (group.declared.outputs[0].name() != "block_z") continue;
        EXPECT_THAT(group.selection->program.kernels().back().cuda, HasSubstr("wgmma"));
    }
}

TEST(MixedPrecision, LeavesAStepThatHasNoneAsItIs) {
    const schedules::Declared step = step_of_layers(2, 24, 32);
    EXPECT_THAT(mixed_precision(step, {}).rounded, IsEmpty());
    EXPECT_EQ(plan_step(step, hopper).text(), plan_step(step, hopper, {}, {.mixed = {.values = f32}}).text());
}

TEST(MixedPrecision, KeepsWhatIsNamed) {
    const schedules::Declared step = step_of_blocks(2, 64, 32);
    const MixedStep kept = mixed_precision(step, {.values = bf16, .keep = {"block0_g"}});
    EXPECT_THAT(kept.rounded, AllOf(Not(testing::Contains("block0_g")), testing::Contains("block1_g")));
    // one of the operands stays f32, and so does their product's way
    EXPECT_ERROR(mixed_precision(step, {.values = bf16, .keep = {"gg"}}),
                 "mixed_precision: the step has no tensor 'gg' to keep; there are [block0_bias, ");
    EXPECT_ERROR(mixed_precision(step, {.values = i32}),
                 "mixed_precision: values of i32; write bf16, f16 or, to leave all as it is, f32");
}

/// A number behind a name is no name.
TEST(MixedPrecision, KeepsEqualLayersByOneName) {
    Tensor h = input("x", f32, {32, 32});
    for (const char* name : {"h", "h_2", "h_3"})
        h = product_of_rows(name, h, input(std::string("w") + name, f32, {32, 32}));
    EXPECT_THAT(mixed_precision({{h}}, {.values = bf16}).rounded, testing::Contains("h_2"));
    EXPECT_THAT(mixed_precision({{h}}, {.values = bf16, .keep = {"h"}}).rounded,
                ElementsAre("x_bf16", "wh_bf16", "wh_2_bf16", "wh_3_bf16"));
}

class MixedSteps : public OnDevice {};
TW_ON_EACH_DEVICE(MixedSteps);

/// Next to the step as it is declared: by what 8 bits of values allow, and not without any difference.
TEST_P(MixedSteps, AreNearWhatIsDeclared) {
    for (const schedules::Declared& step :
         {step_of_blocks(1, 64, 32), step_of_classifier(32, {48, 32, 16}), step_of_layers(3, 24, 32)}) {
        const StepPlan plan = plan_step(step, hopper, {}, {.mixed = {.values = bf16}});
        const Bindings data = data_of(step, 31);
        const std::vector<HostArray> exact = interpret_plain(step.outputs, data), planned = interpret_step(plan, data);
        const PlannedStep on_device(plan, device_);
        for (const auto& [name, array] : data.inputs) on_device.set(name, array);
        on_device.run();
        double most = 0;
        for (size_t k = 0; k < exact.size(); ++k) {
            const std::string name = step.outputs[k].name();
            EXPECT_LT(distance(planned[k], exact[k]), 0.02) << name << "\n" << plan.text(false);
            EXPECT_LT(distance(on_device.get(name), exact[k]), 0.02) << name << " on the device";
            most = std::max(most, distance(planned[k], exact[k]));
        }
        EXPECT_GT(most, 1e-5) << "nothing was rounded";
    }
}

}  // namespace
}  // namespace tw

// Steps of training: cut, placed, run.
#include "ops/step/step_plan.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "ops/check.h"
#include "ops/step/interpret_step.h"
#include "ops/step/planned_step.h"
#include "tests/ops/step/small_steps.h"
#include "tests/ops/step/step_results.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const Target hopper = target("sm_90a");

void expect_near(const std::vector<HostArray>& got, const std::vector<HostArray>& expected, double absolute) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t k = 0; k < got.size(); ++k) {
        std::vector<int64_t> at(got[k].shape.size());
        if (got[k].num_elements() == 0) continue;
        do {
            ASSERT_NEAR(got[k].at(at).real, expected[k].at(at).real, absolute) << "result " << k;
        } while (advance(at, got[k].shape));
    }
}

class PlannedSteps : public OnDevice {};
TW_ON_EACH_DEVICE(PlannedSteps);

TEST_P(PlannedSteps, AreWhatIsDeclared) {
    for (const schedules::Declared& declared :
         {step_of_layers(3, 24, 32), step_of_classifier(20, {24, 16, 16, 7}), step_of_blocks(2, 16, 8)}) {
        const StepPlan plan = plan_step(declared, hopper);
        EXPECT_THAT(faults_of(plan), IsEmpty()) << plan.text();
        const Bindings data = random_bindings(declared.outputs, std::random_device{}());
        const std::vector<HostArray> expected = interpret_plain(declared.outputs, data, Precision::Float64);
        expect_near(interpret_step(plan, data), expected, 1e-3);
        const PlannedStep step(plan, device_);
        expect_near(run_step(step, declared, data), expected, 1e-3);
        const auto& [out, in] = declared.in_place[0];
        EXPECT_EQ(step.buffer(out.name()).pointer(), step.buffer(in.name()).pointer());
    }
}

/// Steps behind each other go on from where the last one ended.
TEST_P(PlannedSteps, LowerTheLoss) {
    const schedules::Declared declared = step_of_layers(2, 16, 16);
    const PlannedStep step(plan_step(declared, hopper), device_);
    Bindings data = random_bindings(declared.outputs, 7);
    data.inputs["rate"].set({}, make_value(f32, 0.05));
    for (const auto& [name, array] : data.inputs) step.set(name, array);
    double last = 1e30;
    for (int k = 0; k < 5; ++k) {
        step.run();
        const double loss = step.get("loss").at({}).real;
        EXPECT_LT(loss, last);
        last = loss;
    }
}

/// A stack of blocks takes what one takes, and little more.
TEST(PlanStep, BlocksAreScheduledOnce) {
    auto planned = [](int blocks, double& seconds) {
        const auto begin = std::chrono::steady_clock::now();
        const StepPlan plan = plan_step(step_of_blocks(blocks, 64, 32), hopper);
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        fmt::print("{} blocks: {:.2f} s, {} groups, {} of them distinct\n", blocks, seconds, plan.groups.size(),
                   plan.num_distinct());
        return plan.num_distinct();
    };
    double few = 0, many = 0;
    EXPECT_EQ(planned(12, few), planned(48, many));
    EXPECT_LT(many / few, 4.5);
}

/// Layers inside of a stack are equal: kernels of more of them are those of fewer.
TEST(PlanStep, SchedulesEqualLayersOnce) {
    const StepPlan few = plan_step(step_of_layers(4, 24, 32), hopper),
                   more = plan_step(step_of_layers(8, 24, 32), hopper);
    EXPECT_EQ(few.num_distinct(), more.num_distinct()) << more.text();
    EXPECT_EQ(2 * (more.groups.size() - few.groups.size()), more.groups.size() - few.groups.size() + 4 * 3)
        << few.text() << more.text();
    EXPECT_LT(more.arena_bytes, 3 * few.arena_bytes);
}

std::vector<std::string> groups_of(const StepPlan& plan) {
    std::vector<std::string> groups;
    for (const StepGroup& group : plan.groups) groups.push_back(fmt::format("{}", fmt::join(group.operations, " ")));
    return groups;
}

/// What stands behind a product is made with it: activations, their gradients, updates of weights.
TEST(PlanStep, JoinsWhatStandsBehindProducts) {
    const StepPlan plan = plan_step(step_of_layers(2, 1024, 1024), hopper);
    EXPECT_THAT(groups_of(plan),
                testing::ElementsAre("z0 h0", "z1 h1", "loss d_h1 d_z1", "d_h0 d_z0", "d_w0 next0", "d_w1 next1"));
    EXPECT_THAT(plan.text(), HasSubstr("simplified: one is 1.0 everywhere\n"));
    EXPECT_THAT(plan.text(), HasSubstr("next0 f32 [1024, 1024]: in the place of w0"));
    EXPECT_THAT(plan.text(), HasSubstr("not joined: z0, h0 | z1, h1: together "));
    EXPECT_THAT(plan.text(), HasSubstr("\njoined: z0 | h0: together "));
}

/// A classifier's step: ReLU keeps its result alone, biases are updated with the sums of columns that change them. The
/// order is that which needs least memory, parts of sums that the schedules of products have included.
TEST(PlanStep, OfAClassifier) {
    const StepPlan plan = plan_step(step_of_classifier(128, {784, 512, 512, 10}), hopper);
    EXPECT_THAT(groups_of(plan), testing::ElementsAre("z0 h0", "z1 h1", "z2", "most total d_total d_z2", "of_row loss",
                                                      "d_h1 d_z1", "d_w2 next4", "d_b2 next5", "d_h0 d_z0",
                                                      "d_w1 next2", "d_b1 next3", "d_w0 next0", "d_b0 next1"))
        << plan.text();
    EXPECT_LE(plan.num_kernels(), 16u);
}

/// What is read to know how long a sum is comes from another group like all else.
TEST_P(PlannedSteps, HaveLengthsThatAreComputed) {
    const Tensor x = input("x", f32, {20, 30}), given = input("given", i32, {20});
    const Tensor lengths = compute("lengths", {20}, [&](Expr i) { return min(given(i) * 3, 30); });
    const Tensor sums = compute("sums", {20}, [&](Expr i) {
        const Axis r = reduce_axis("r", lengths(i));
        return sum(x(i, r), r);
    });
    const Tensor shares = compute("shares", {20, 30}, [&](Expr i, Expr j) { return x(i, j) - sums(i); });
    const schedules::Declared declared{{lengths, shares}};
    const StepPlan plan = plan_step(declared, hopper);
    const Bindings data = random_bindings(declared.outputs, std::random_device{}());
    const std::vector<HostArray> expected = interpret_plain(declared.outputs, data);
    expect_near(interpret_step(plan, data), expected, 0);
    expect_near(run_step(PlannedStep(plan, device_), declared, data), expected, 1e-4);
}

// ---- what overwrites inputs -----------------------------------------------------------------------------------------

/// What is read elsewhere, or by one who needs the result, is replaced at the end.
TEST_P(PlannedSteps, CopyWhereAnInputIsStillNeeded) {
    const Tensor x = input("x", f32, {40}), v = input("v", f32, {40});
    const Tensor shifted = compute("shifted", {40}, [&](Expr i) { return x((i + 1) % 40); });
    const Tensor moved = compute("moved", {40}, [&](Expr i) { return v(i) * 0.5 + x(i); });
    const Tensor k = compute("change", {40}, [&](Expr i) { return moved(i) - v(39 - i); });
    const schedules::Declared declared{{shifted, moved, k}, {{shifted, x}, {moved, v}}};
    const StepPlan plan = plan_step(declared, hopper);
    EXPECT_THAT(faults_of(plan), IsEmpty());
    EXPECT_THAT(plan.text(false), HasSubstr(": copy of moved\n"));
    EXPECT_THAT(plan.text(false), testing::Not(HasSubstr("not joined")));
    const Bindings data = random_bindings(declared.outputs, std::random_device{}());
    const std::vector<HostArray> expected = interpret_plain(declared.outputs, data);
    expect_near(interpret_step(plan, data), expected, 0);
    const PlannedStep step(plan, device_);
    expect_near(run_step(step, declared, data), expected, 1e-6);
    EXPECT_EQ(step.buffer("moved").pointer(), step.buffer("v").pointer());
}

/// What tells how long a sum is, and is overwritten by what is made of the sum.
TEST_P(PlannedSteps, OverwriteLengths) {
    const Tensor x = input("x", i32, {20, 8}), length = input("length", i32, {20});
    const Tensor next = compute("next", {20}, [&](Expr i) {
        const Axis r = reduce_axis("r", length(i) % 8);
        return length(i) + sum(x(i, r), r);
    });
    const schedules::Declared declared{{next}, {{next, length}}};
    const StepPlan plan = plan_step(declared, hopper);
    EXPECT_THAT(faults_of(plan), IsEmpty());
    const Bindings data = random_bindings(declared.outputs, std::random_device{}());
    const std::vector<HostArray> expected = interpret_plain(declared.outputs, data);
    expect_near(interpret_step(plan, data), expected, 0);
    expect_near(run_step(PlannedStep(plan, device_), declared, data), expected, 0);
}

TEST_P(PlannedSteps, TakeMemoryOfTheCaller) {
    const schedules::Declared declared = step_of_layers(1, 8, 8);
    const Buffer mine = device_->allocate(8 * 8 * 4, "mine");
    const PlannedStep step(plan_step(declared, hopper), device_, {{"w0", mine}});
    EXPECT_EQ(step.buffer("w0").pointer(), mine.pointer());
    EXPECT_EQ(step.buffer("next0").pointer(), mine.pointer());
    EXPECT_FALSE(step.launches().empty());
}

// ---- a plan that is not what it was ---------------------------------------------------------------------------------

TEST(PlanStep, FaultsAreFound) {
    const StepPlan plan = plan_step(step_of_layers(3, 24, 32), hopper);
    ASSERT_THAT(faults_of(plan), IsEmpty());
    int changed = 0;
    for (size_t g = 0; g < plan.groups.size(); ++g)
        for (size_t k = 0; k < plan.groups[g].after.size(); ++k, ++changed) {  // an edge dropped
            StepPlan other = plan;
            other.groups[g].after.erase(other.groups[g].after.begin() + static_cast<std::ptrdiff_t>(k));
            EXPECT_FALSE(faults_of(other).empty()) << "group " << g << ", edge " << k;
        }
    for (size_t v = 0; v < plan.values.size(); ++v) {
        if (plan.values[v].place != StepValue::Place::Arena) continue;
        ++changed;
        StepPlan moved = plan;  // an offset moved
        moved.values[v].offset += 128;
        EXPECT_FALSE(faults_of(moved).empty()) << moved.values[v].name;
        for (size_t other = 0; other < plan.values.size(); ++other) {  // a place taken too early
            const StepValue &a = plan.values[v], &b = plan.values[other];
            if (v == other || b.place != StepValue::Place::Arena || b.bytes == 0 || a.made > b.last || b.made > a.last)
                continue;
            StepPlan reused = plan;
            reused.values[v].offset = b.offset;
            EXPECT_FALSE(faults_of(reused).empty()) << a.name << " over " << b.name;
        }
    }
    for (size_t g = 1; g < plan.groups.size(); ++g) {  // two groups exchanged
        if (std::ranges::count(plan.groups[g].after, static_cast<int>(g) - 1) == 0) continue;
        ++changed;
        StepPlan other = plan;
        std::swap(other.groups[g], other.groups[g - 1]);
        EXPECT_FALSE(faults_of(other).empty()) << "groups " << g - 1 << " and " << g;
    }
    EXPECT_GT(changed, 20);
}

// ---- what is refused ------------------------------------------------------------------------------------------------

TEST(PlanStep, RefusesWhatItCannotPlan) {
    const Tensor x = input("x", f32, {8}), other = input("other", f32, {8}), strided = input("s", f32, {4, 4}, {8, 1});
    const Expr n = size("n", {.min = 1, .max = 9}), alpha = scalar("alpha", f32);
    auto twice = [](const char* name, const Tensor& t) {
        return compute(name, {8}, [&](Expr i) { return t(i) * 2.0; });
    };
    auto plan = [](const schedules::Declared& step) { return plan_step(step, hopper); };
    const Tensor y = twice("y", x), z = twice("z", y);
    EXPECT_ERROR(plan({}), "plan_step: no results; name what the step computes");
    EXPECT_ERROR(plan({{x}}), "the result 'x' is an input; name what is computed");
    EXPECT_ERROR(plan({{y, twice("y", y)}}), "the result 'y' has the name of another tensor that is given or returned");
    EXPECT_ERROR(plan({{compute("t", {n}, [&](Expr i) { return cast(f32, i); })}}),
                 "'t' has the extent n; a step is planned for one shape, declare it with numbers");
    EXPECT_ERROR(plan({{compute("t", {8}, [&](Expr i) { return x(i) * alpha; })}}),
                 "'t' reads the scalar 'alpha'; what changes from step to step lies in device memory, declare "
                 "input(\"alpha\", f32, {})");
    EXPECT_ERROR(plan({{z}, {{y, x}}}), "'y' overwrites 'x': the first is no result; name it as one");
    EXPECT_ERROR(plan({{y}, {{y, other}}}), "'y' overwrites 'other': the second is no input that the step reads");
    EXPECT_ERROR(plan({{y, z}, {{y, x}, {z, x}}}), "'z' overwrites 'x': another result overwrites it already");
    const Tensor narrow = compute("narrow", {8}, [&](Expr i) { return cast(bf16, x(i)); });
    EXPECT_ERROR(plan({{narrow}, {{narrow, x}}}),
                 "'narrow' overwrites 'x': bf16 [8] and f32 [8] differ; a tensor takes the place of one like it");
    EXPECT_ERROR(plan({{compute("t", {8}, [&](Expr i) { return select(i < n, x(i), 0.0); })}}),
                 "'t' reads the named size 'n'; a step is planned for one shape, write the number");
    const Tensor wide = input("wide", f32, {2, 4}, {n, 1});
    EXPECT_ERROR(plan({{compute("t", {2, 4}, [&](Expr i, Expr j) { return wide(i, j); })}}),
                 "'wide' has the stride n; a step is planned for one shape");
    EXPECT_ERROR(plan({{y}, {{y, Tensor()}}}), "of which the first overwrites the second, is undefined");
    const Tensor sum_of_both = compute("both", {8}, [&](Expr i) { return x(i) + other(i); });
    EXPECT_ERROR(plan({{sum_of_both}, {{sum_of_both, x}, {sum_of_both, other}}}),
                 "'both' overwrites 'other': it overwrites 'x' already; return a second tensor like it");
    EXPECT_ERROR(plan_step({{sum_of_both}, {{sum_of_both, x}}}, hopper, {}, {.parts = {{x, other, 0}}}),
                 "'both' overwrites 'x', a part of 'other', which the step reads; overwrite 'other'");
    const Tensor square = compute("square", {4, 4}, [&](Expr i, Expr j) { return strided(i, j) + 1.0; });
    EXPECT_ERROR(plan({{square}, {{square, strided}}}), "its rows have gaps; declare it without strides");

    Registry registry;
    registry.add("wrong", [&](const auto&, const Target& wanted) {
        return std::optional(Schedule({twice("of_another", other)}, wanted));
    });
    EXPECT_ERROR(plan_step({{y}}, hopper, registry), "plan_step: 'y' cannot be scheduled: ");

    const StepPlan planned = plan({{y}});
    const auto device = open_device("emulated");
    EXPECT_ERROR(PlannedStep(planned, nullptr), "the device is a null pointer");
    EXPECT_ERROR(PlannedStep(planned, device, {{"x", device->allocate(8, "small")}}),
                 "the memory of 'x' has 8 bytes, it spans 32");
    EXPECT_ERROR(PlannedStep(plan({{y}, {{y, x}}}), device, {{"y", device->allocate(32, "mine")}}),
                 "'y' takes the place of 'x'; give the memory of that");
    const PlannedStep step(planned, device);
    EXPECT_ERROR(step.buffer("q"), "'q' is no input or result; there are [x, y]");
    EXPECT_ERROR(step.set("x", host_array(bf16, {8})),
                 "'x' is f32 [8] with strides [1], the array is bf16 [8] with strides [1]");
}

}  // namespace
}  // namespace tw

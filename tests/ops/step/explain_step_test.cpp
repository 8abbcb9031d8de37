// What explain() tells of a step, and that it leaves the step as it was.
#include "ops/step/explain_step.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "dsl/own_schedule.h"
#include "ops/check.h"
#include "ops/layers.h"
#include "ops/step/compile_step.h"
#include "schedules/calibrated_speeds.h"
#include "schedules/choose.h"
#include "tests/ops/step/small_steps.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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
    EXPECT_GT(measured_replay(step, 2), 0);
    EXPECT_EQ(step.get("w0").bytes, weight.bytes);
    EXPECT_ERROR(measured_replay(step, 0), "measured_replay: 0 runs; it takes at least one");
    const std::string own = step.explain({.runs = 1});
    EXPECT_THAT(own, HasSubstr("the whole step, one launch: "));
    EXPECT_EQ(step.get("w0").bytes, weight.bytes);
    double sum = 0, of_kinds = 0;
    for (const KernelCost& cost : costs) sum += cost.measured;
    for (const KindCost& kind : costs_by_kind(step.plan(), costs)) of_kinds += kind.measured;
    EXPECT_NEAR(of_kinds, sum, 1e-9 * sum);
}

TEST_P(ExplainedSteps, AreCompiledOnes) {
    const auto backend = std::make_shared<nn::Backend>(device_);
    const nn::Linear layer(backend, 8, 4, 1);
    HostArray rows = host_array(f32, {16, 8});
    fill_uniform(rows, -1, 1, 2);
    const nn::Tensor x(backend, rows, "x");
    const nn::CompiledStep step = nn::compile(backend, [&] { return std::vector{nn::tanh(layer(x))}; });
    const std::string text = step.explain({.runs = 1});
    EXPECT_THAT(text, AllOf(HasSubstr("sum of products"), HasSubstr("the whole step, one launch: ")));
    EXPECT_ERROR(step.explain({.runs = 0}), "0 runs; it takes at least one");
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

constexpr double lanes_of_h100 = 132 * 4 * 32;

/// A product with tanh behind it, and the sum of squares of that: two groups.
struct SmallStep {
    const Tensor x = input("x", f32, {64, 32}), w = input("w", f32, {48, 32});
    const Tensor z = product_of_rows("z", x, w);
    const Tensor h = compute("h", {64, 48}, [&](Expr i, Expr j) { return tanh(z(i, j)); });
    const Axis i = reduce_axis("i", 64), j = reduce_axis("j", 48);
    const Tensor loss = compute("loss", {}, [&](const std::vector<Expr>&) { return sum(h(i, j) * h(i, j), {i, j}); });
    const StepPlan plan = plan_step({{h, loss}}, target("sm_90a"));
};

TEST(ExplainStep, CountsWhatIsDeclared) {
    const SmallStep step;
    ASSERT_EQ(step.plan.groups.size(), 2u);
    const codegen::DeviceSpeeds& speeds = schedules::calibrated_speeds(target("sm_90a"));
    double flops[2] = {}, compute_seconds[2] = {};
    for (const KernelCost& cost : kernel_costs(step.plan)) {
        flops[cost.group] += cost.flops;
        compute_seconds[cost.group] += cost.compute_seconds;
        EXPECT_EQ(cost.operations, step.plan.groups[cost.group].operations);
        EXPECT_EQ(cost.why, step.plan.groups[cost.group].selection->why);
        EXPECT_DOUBLE_EQ(cost.memory_seconds, cost.bytes / speeds.memory_bytes);
    }
    const double expected[2] = {64 * 48 * (32 * 2 + 1), 64 * 48 * 2};
    for (int g = 0; g < 2; ++g) {
        EXPECT_DOUBLE_EQ(flops[g], expected[g]);
        EXPECT_DOUBLE_EQ(compute_seconds[g], expected[g] / (2 * lanes_of_h100 * speeds.clock));
    }
}

/// A sum in parts, and that of the parts.
TEST(ExplainStep, SharesFlopsAmongKernels) {
    const int64_t count = 1 << 22;
    const Tensor x = input("x", f32, {count});
    const Axis i = reduce_axis("i", count);
    const Tensor loss = compute("loss", {}, [&](const std::vector<Expr>&) { return sum(x(i) * x(i), i); });
    const std::vector<KernelCost> costs = kernel_costs(plan_step({{loss}}, target("sm_90a")));
    ASSERT_EQ(costs.size(), 2u);
    EXPECT_DOUBLE_EQ(costs[0].flops + costs[1].flops, 2.0 * count);
    EXPECT_GT(costs[0].flops, 1.9 * count);
    EXPECT_GT(costs[1].flops, 0);
}

TEST(ExplainStep, TellsOfKindsAndRoofs) {
    const SmallStep step;
    const std::vector<KernelCost> costs = kernel_costs(step.plan);
    const std::string text = step.plan.groups.empty() ? "" : explain(step.plan);
    EXPECT_THAT(text, HasSubstr(fmt::format("2 groups, {} kernels, 2.058e+05 FLOPs as declared", costs.size())));
    double seconds[2] = {};
    for (const KernelCost& cost : costs) seconds[cost.group] += cost.seconds * 1e6;
    EXPECT_THAT(text, HasSubstr(fmt::format("\nsum of products           1        1 {:>10.2f}\n", seconds[0])));
    EXPECT_THAT(text, HasSubstr(fmt::format("\nreduction                 1        1 {:>10.2f}\n", seconds[1])));
    EXPECT_THAT(text, HasSubstr("\nelements                  1        0       0.00\n"));
    for (const KernelCost& cost : costs) {
        const double memory = cost.memory_seconds / cost.seconds, compute = cost.compute_seconds / cost.seconds;
        const std::string roofs = fmt::format(" {:>7.1f}% {:>7.1f}%  {}", 100 * memory, 100 * compute,
                                              compute > memory ? "compute" : "memory");
        const std::string of = fmt::format("\n       of {}; {}\n", cost.group == 0 ? "z, h" : "loss", cost.why);
        EXPECT_THAT(text, testing::ContainsRegex(cost.name + "[^\n]*" + roofs + "[^\n]*" + of));
    }
    EXPECT_THAT(text, Not(HasSubstr("not joined")));
    EXPECT_EQ(explain(step.plan, {.with_neighbours = true}).find("not joined: ") != std::string::npos,
              !step.plan.apart.empty());
}

/// By its compute, of tensor cores, a product; of as many bytes as FLOPs, by memory, elements.
TEST(ExplainStep, KnowsTensorCores) {
    const int64_t n = 2048;
    const Tensor a = input("a", bf16, {n, n}), b = input("b", bf16, {n, n}), e = input("e", f32, {n, n});
    const Axis k = reduce_axis("k", n);
    const Tensor c =
        compute("c", {n, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    const Tensor twice = compute("twice", {n, n}, [&](Expr i, Expr j) { return 2.0 * e(i, j); });
    const std::vector<KernelCost> costs = kernel_costs(plan_step({{c, twice}}, target("sm_90a")));
    ASSERT_EQ(costs.size(), 2u);
    const codegen::DeviceSpeeds& speeds = schedules::calibrated_speeds(target("sm_90a"));
    const double size = n, flops = 2 * size * size * size;
    EXPECT_DOUBLE_EQ(costs[0].flops, flops);
    EXPECT_DOUBLE_EQ(costs[0].compute_seconds, flops / (2 * 2048 * 132 * speeds.clock));
    EXPECT_GT(costs[0].compute_seconds, costs[0].memory_seconds);
    EXPECT_DOUBLE_EQ(costs[1].flops, size * size);
    EXPECT_GT(costs[1].memory_seconds, costs[1].compute_seconds);
    EXPECT_LT(costs[0].compute_seconds, costs[0].seconds);
    EXPECT_LT(costs[1].memory_seconds, costs[1].seconds);
}

TEST(ExplainStep, KnowsPartsWithSchedulesOfTheirOwn) {
    const Tensor x = input("x", f32, {32, 16}), w = input("w", f32, {24, 16});
    const auto declare = [](const std::vector<Tensor>& in) {
        return std::vector{product_of_rows("product", in[0], in[1])};
    };
    const Tensor z =
        with_schedule("product", {x, w}, declare, [&](const std::vector<Tensor>& in, const Target& target) {
            return schedules::choose_schedule(declare(in), target);
        })[0];
    const StepPlan plan = plan_step({{z}}, target("sm_90a"));
    const std::vector<KernelCost> costs = kernel_costs(plan);
    const std::vector<KindCost> kinds = costs_by_kind(plan, costs);
    ASSERT_EQ(kinds.size(), 1u);
    EXPECT_EQ(kinds[0].kind, OperationKind::OwnSchedule);
    EXPECT_EQ(kinds[0].operations, 1);
    double flops = 0;
    for (const KernelCost& cost : costs) flops += cost.flops;
    EXPECT_DOUBLE_EQ(flops, 32 * 24 * 16 * 2);
    EXPECT_THAT(explain(plan), HasSubstr("own schedule"));
}

}  // namespace
}  // namespace tw

// Groups of steps that copy and set memory by nodes of the graph, not by kernels.
#include <algorithm>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/step/explain_step.h"
#include "ops/step/interpret_step.h"
#include "ops/step/planned_step.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class MemoryNodes : public OnDevice {
protected:
    static StepPlan planned(const schedules::Declared& step, bool memory_nodes = true) {
        return plan_step(step, target("sm_90a"), {}, {.memory_nodes = memory_nodes, .join = false});
    }
    static const StepGroup& group_of(const StepPlan& plan, const std::string& operation) {
        return *std::ranges::find_if(plan.groups,
                                     [&](const StepGroup& each) { return each.operations == std::vector{operation}; });
    }
};
TW_ON_EACH_DEVICE(MemoryNodes);

/// One of each type, shape and number; what is computed, moved elsewhere or cast is none.
TEST_P(MemoryNodes, AreWhatKernelsWouldBe) {
    std::vector<Tensor> results;
    std::vector<std::string> with_node;
    const auto add = [&](bool has_node, const Tensor& tensor) {
        results.push_back(tensor);
        if (has_node) with_node.push_back(tensor.name());
    };
    for (const Type type : {f32, bf16, f64, i32, i8}) {
        const std::string name(name_of(type));
        const Tensor x = input("x_" + name, type, {5, 7});
        const auto number = [&](const std::string& wish, double value) {
            return compute(wish + name, {3, 4}, [&](const std::vector<Expr>&) { return cast(type, value); });
        };
        add(true, compute("copy_" + name, {5, 7}, [&](Expr i, Expr j) { return x(i, j); }));
        add(true, number("zero_", 0));
        add(type != f64, number("five_", 5));
        add(false, compute("turned_" + name, {7, 5}, [&](Expr i, Expr j) { return x(j, i); }));
        add(false, compute("part_" + name, {4, 7}, [&](Expr i, Expr j) { return x(i, j); }));
    }
    const Tensor f = input("f", f32, {6}), own = input("own", f32, {6});
    add(false, compute("rounded", {6}, [&](Expr i) { return cast(bf16, f(i)); }));
    add(false, compute("places", {6}, [](Expr i) { return cast(f32, i); }));
    const schedules::Declared step{results, {}};
    const StepPlan plan = planned(step), kernels = planned(step, false);
    EXPECT_THAT(faults_of(plan), IsEmpty());
    std::vector<std::string> found;
    for (const StepGroup& group : plan.groups)
        if (group.memory) found.push_back(group.operations[0]);
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(with_node));
    EXPECT_TRUE(std::ranges::none_of(kernels.groups, [](const StepGroup& group) { return group.memory.has_value(); }));
    EXPECT_THAT(group_of(plan, "five_bf16").memory->element, testing::SizeIs(2));
    const Bindings data = random_bindings(step.outputs, 5);
    const std::vector<HostArray> expected = interpret_step(plan, data);
    for (const StepPlan* each : {&plan, &kernels}) {
        const PlannedStep run(*each, device_);
        for (const auto& [name, array] : data.inputs) run.set(name, array);
        run.run();
        for (size_t k = 0; k < results.size(); ++k) {
            const auto differs = difference(results[k].name(), run.get(results[k].name()), expected[k], bitwise);
            EXPECT_FALSE(differs) << *differs;
        }
    }
    EXPECT_THAT(plan.text(), HasSubstr("kernels  none, a copy of memory"));
    EXPECT_THAT(plan.text(), HasSubstr("kernels  none, a fill of memory"));
    EXPECT_THAT(explain(plan), HasSubstr("copy_f (copy node)"));
}

/// A result that cannot take its input's place at once is copied there at the end.
TEST_P(MemoryNodes, BringResultsToTheirPlaces) {
    const Tensor w = input("w", f32, {40});
    const Tensor turned = compute("turned", {40}, [&](Expr i) { return w(39 - i) * 2.0; });
    const StepPlan plan = planned({{turned}, {{turned, w}}});
    EXPECT_THAT(faults_of(plan), IsEmpty());
    EXPECT_TRUE(group_of(plan, "copy of turned").memory->is_copy);
    const PlannedStep step(plan, device_);
    const Bindings data = random_bindings({turned}, 3);
    for (const auto& [name, array] : data.inputs) step.set(name, array);
    for (int n = 0; n < 2; ++n) step.run();
    const HostArray got = step.get("w"), first = data.inputs.at("w");
    for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(got.at({i}).real, 4 * first.at({i}).real);
    EXPECT_THAT(step.explain({.runs = 1}), HasSubstr("(copy node)"));
}

}  // namespace
}  // namespace tw

// Where a step first makes an infinity or a NaN.
#include "ops/step/first_not_finite.h"

#include <cmath>
#include <random>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/step/explain_step.h"
#include "tests/ops/step/small_steps.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

using testing::HasSubstr;

class FirstNotFinite : public OnDevice {
protected:
    std::mt19937_64 random_{std::random_device{}()};
};
TW_ON_EACH_DEVICE(FirstNotFinite);

/// One element of a product is large, and its exponential overflows; the loss and the gradients behind are NaN too.
TEST_P(FirstNotFinite, IsFoundAndNothingChanges) {
    const int64_t rows = 24, width = 16;
    const Tensor x = input("x", f32, {rows, width}), w = input("w", f32, {width, width});
    const Tensor z = product_of_rows("z", x, w);
    const Tensor h = compute("h", {rows, width}, [&](Expr i, Expr j) { return exp(z(i, j)); });
    const schedules::Declared declared = step_towards(input("y", f32, {rows, width}), h, {w});
    PlannedStep step(plan_step(declared, target("sm_90a")), device_);
    Bindings data = random_bindings(declared.outputs, random_());
    const auto set_all = [&] {
        for (auto& [name, array] : data.inputs) step.set(name, array);
    };
    set_all();
    EXPECT_FALSE(first_not_finite(step));

    const int64_t row = static_cast<int64_t>(random_() % rows);
    data.inputs.at("x").set({row, 0}, make_value(f32, 1e4));
    data.inputs.at("w").set({3, 0}, make_value(f32, 1.0));
    for (int64_t j = 0; j < width; ++j)
        if (j != 3) data.inputs.at("w").set({j, 0}, make_value(f32, -1.0));
    set_all();
    const auto found = first_not_finite(step);
    ASSERT_TRUE(found);
    ASSERT_TRUE(found->group) << found->text();
    EXPECT_EQ(found->at, (std::vector<int64_t>{row, 3})) << found->text();
    EXPECT_TRUE(std::isinf(found->element));
    EXPECT_THAT(found->operations, testing::Contains("h"));
    EXPECT_EQ(found->operation, "h") << found->text();
    EXPECT_THAT(found->text(), HasSubstr(fmt::format("makes inf at [{}, 3] of h", row)));
    for (const auto& [name, array] : data.inputs) EXPECT_EQ(step.get(name).bytes, array.bytes) << name;

    data.inputs.at("y").set({1, 2}, make_value(f32, std::nan("")));
    set_all();
    const auto given = first_not_finite(step);
    ASSERT_TRUE(given);
    EXPECT_FALSE(given->group);
    EXPECT_THAT(given->text(), HasSubstr("the step is given nan at [1, 2] of y"));
}

/// A chain of elements is one group, which overwrites what it is made of; one of its operations makes NaN or infinity
/// of numbers, and all behind it go on with that.
TEST_P(FirstNotFinite, NamesTheOperationInsideOfAGroup) {
    const int64_t rows = 8, width = 48;
    for (int k = 0; k < 3; ++k) {
        const size_t length = 3 + random_() % 5, bad = random_() % length;
        const bool is_nan = random_() % 2 == 0;
        const Tensor w = input("w", f32, {rows, width});
        Tensor h = w;
        for (size_t n = 0; n < length; ++n) {
            const DeclaredIn scope(fmt::format("layers.{}", n));
            const Tensor in = h;
            h = compute(fmt::format("h{}", n), {rows, width}, [&](Expr i, Expr j) {
                if (n != bad) return sqrt(in(i, j) + 0.5);
                return is_nan ? log(in(i, j) - 100.0) : exp(in(i, j) * 1000.0);
            });
        }
        const PlannedStep step(plan_step({{h}, {{h, w}}}, target("sm_90a")), device_);
        ASSERT_EQ(step.plan().groups.size(), 1U);
        ASSERT_EQ(step.plan().groups[0].operations.size(), length);
        HostArray weights = host_array(f32, {rows, width});
        fill_uniform(weights, 1, 2, random_());
        step.set("w", weights);
        const auto found = first_not_finite(step);
        ASSERT_TRUE(found && found->group);
        EXPECT_EQ(found->operation, fmt::format("h{}", bad)) << found->text();
        EXPECT_EQ(found->scope, fmt::format("layers.{}", bad));
        EXPECT_THAT(found->text(), HasSubstr(fmt::format("the first to make one is h{0} (layers.{0})", bad)));
        EXPECT_EQ(step.get("w").bytes, weights.bytes);
    }
}

/// An index that leads outside of a table stops the step behind a group that has overwritten its input.
TEST_P(FirstNotFinite, PutsBackWhatAStepOverwroteThatDidNotEnd) {
    if (device_->kind() != DeviceKind::Emulated) GTEST_SKIP() << "a GPU is lost by a kernel that leaves its memory";
    const int64_t rows = 16;
    const Tensor w = input("w", f32, {rows, rows}), table = input("table", f32, {rows}), at = input("at", i32, {rows});
    const Tensor next = compute("next", {rows, rows}, [&](Expr i, Expr j) { return 0.5 * w(i, j); });
    const Tensor z = product_of_rows("z", next, next);
    const Axis k = reduce_axis("k", rows);
    const Tensor found =
        compute("found", {rows}, [&](Expr i) { return table(cast(i64, at(i))) * reduce_max(z(i, k), k); });
    const PlannedStep step(plan_step({{next, found}, {{next, w}}}, target("sm_90a")), device_);
    HostArray weights = host_array(f32, {rows, rows}), elements = host_array(f32, {rows}),
              ids = host_array(i32, {rows});
    fill_uniform(weights, 1, 2, random_());
    fill_uniform(elements, 1, 2, random_());
    ids.set({5}, make_value(i32, int64_t{1} << 20));
    step.set("w", weights);
    step.set("table", elements);
    step.set("at", ids);
    EXPECT_ERROR(first_not_finite(step), "out of bounds");
    EXPECT_EQ(step.get("w").bytes, weights.bytes);
    EXPECT_ERROR(measured_costs(step, 1), "out of bounds");
    EXPECT_EQ(step.get("w").bytes, weights.bytes);
    EXPECT_ERROR(step.run(), "out of bounds");
    EXPECT_NE(step.get("w").bytes, weights.bytes) << "a step that stops before it overwrites tests nothing";
}

}  // namespace
}  // namespace tw

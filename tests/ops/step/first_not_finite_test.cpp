// Where a step first makes an infinity or a NaN.
#include "ops/step/first_not_finite.h"

#include <cmath>
#include <random>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "tests/ops/step/small_steps.h"
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
    EXPECT_THAT(found->text(), HasSubstr(fmt::format("makes inf at [{}, 3] of h", row)));
    for (const auto& [name, array] : data.inputs) EXPECT_EQ(step.get(name).bytes, array.bytes) << name;

    data.inputs.at("y").set({1, 2}, make_value(f32, std::nan("")));
    set_all();
    const auto given = first_not_finite(step);
    ASSERT_TRUE(given);
    EXPECT_FALSE(given->group);
    EXPECT_THAT(given->text(), HasSubstr("the step is given nan at [1, 2] of y"));
}

}  // namespace
}  // namespace tw

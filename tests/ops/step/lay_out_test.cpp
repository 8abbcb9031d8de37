// What lies between operations may have its dimensions in another order: no bit is another one by the interpreter, and
// copies in front of kernels that want another one are gone.
#include "ops/step/lay_out.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>

#include "dsl/own_schedule.h"
#include "ops/check.h"
#include "ops/step/explain_step.h"
#include "ops/step/interpret_step.h"
#include "schedules/convolve.h"
#include "schedules/views.h"
#include "tests/ops/step/random_step.h"
#include "tests/ops/step/small_steps.h"
#include "tests/ops/step/step_results.h"
#include "tests/verify/fuzz_seed.h"

namespace tw {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

StepPlan plan_laid_out(const schedules::Declared& step, bool lay_out, Type values = f32) {
    return plan_step(step, target("sm_90a"), {}, {.mixed = {.values = values}, .lay_out = lay_out});
}

/// The step with what is made of its results, dimensions turned, as results: they lie between operations then.
schedules::Declared with_results_turned(schedules::Declared step, fuzz::Random& random) {
    for (Tensor& output : step.outputs) {
        const bool overwrites =
            std::ranges::any_of(step.in_place, [&](const auto& pair) { return pair.first.same(output); });
        if (overwrites || output.rank() == 0) continue;
        std::vector<int> order(static_cast<size_t>(output.rank()));
        std::iota(order.begin(), order.end(), 0);
        std::rotate(order.begin(), order.begin() + random.below(output.rank()), order.end());
        const Tensor turned = schedules::permute("turned_" + output.name(), output, order);
        output = compute("of_" + output.name(), {turned.shape().begin(), turned.shape().end()},
                         [&](const std::vector<Expr>& at) {
                             const Expr element = cast(f32, turned.read({at.begin(), at.end()}));
                             return element + element;
                         });
    }
    return step;
}

/// Each movable operation's dimensions in any order, some of those of one element left out.
DimensionOrders any_orders(const schedules::Declared& step, const StepGraph& graph, fuzz::Random& random) {
    DimensionOrders orders;
    for (const Operation* operation : movable_operations(step, graph)) {
        std::vector<int> order(operation->shape.size());
        std::iota(order.begin(), order.end(), 0);
        for (size_t d = order.size(); d > 1; --d)
            std::swap(order[d - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(d)))]);
        std::erase_if(order, [&](int d) {
            return is_constant(operation->shape[static_cast<size_t>(d)], 1) && random.chance(0.5);
        });
        if (random.chance(0.8)) orders[operation] = order;
    }
    return orders;
}

TEST(InOrders, AreTheSameBits) {
    const uint64_t seed = fuzz::fuzz_seed() + 5;
    const int64_t count = fuzz::number_from_environment("TW_FUZZ_STEPS", 1000) / 50;
    size_t moved = 0, laid_out = 0;
    for (int64_t number = 0; number < count && !testing::Test::HasFailure(); ++number) {
        SCOPED_TRACE(fmt::format("case {} of seed {}", number, seed));
        fuzz::Random random(seed, static_cast<uint64_t>(number));
        const schedules::Declared step = with_results_turned(random_step(random), random);
        const StepGraph graph = step_graph(step);
        const DimensionOrders orders = any_orders(step, graph, random);
        moved += orders.size();
        const StoredStep ordered = in_orders({step}, graph.parts, orders);
        Bindings data = random_bindings(step.outputs, random.next());
        for (auto& [name, array] : data.inputs) fill_integers(array, -2, 2, random.next());
        const std::vector<HostArray> expected = interpret_plain(step.outputs, data);
        expect_same_bits(interpret_plain(ordered.step.outputs, data), expected);
        if (number % 4 != 0) continue;
        const StepPlan plan = plan_laid_out(ordered.step, true);
        laid_out += !plan.laid_out.empty();
        expect_same_bits(interpret_step(plan, data), expected);
    }
    fmt::print("{} steps, {} operations in other orders; of each fourth, planned, {} laid out otherwise\n", count,
               moved, laid_out);
    EXPECT_GT(moved, static_cast<size_t>(count));
}

/// Two convolutions as they are declared in PyTorch, of channels first, with what stands between them: the largest
/// element of each channel, which keeps its dimensions, and ReLU.
schedules::Declared channels_first(int64_t images, int64_t channels, int64_t extent) {
    const Tensor x = input("x", f32, {images, channels, extent, extent});
    auto convolved = [&](const std::string& name, const Tensor& of) {
        const Tensor w = input("w" + name, f32, {channels, channels, 3, 3});
        return schedules::convolve(name, of, w, {}, {.padding = {1}, .layout = schedules::Layout::ChannelsFirst});
    };
    const Tensor z = convolved("z", x);
    const Axis n = reduce_axis("n", images), p = reduce_axis("p", extent), q = reduce_axis("q", extent);
    const Tensor top = compute("top", {1, channels, 1, 1}, [&](Expr a, Expr c, Expr b, Expr d) {
        return reduce_max(z(n + a, c, p + b, q + d), {n, p, q});
    });
    const Tensor h = compute("h", {images, channels, extent, extent}, [&](Expr i, Expr c, Expr r, Expr s) {
        return relu(z(i, c, r, s) - top(0, c, 0, 0) + 8.0);
    });
    const Tensor y = convolved("y", h);
    return {{compute("out", {images, channels, extent, extent},
                     [&](Expr i, Expr c, Expr r, Expr s) { return max(y(i, c, r, s), -1.0); })}};
}

std::vector<std::string> kernels_of(const StepPlan& plan) {
    std::vector<std::string> names;
    for (const KernelCost& cost : kernel_costs(plan)) names.push_back(cost.name);
    return names;
}

/// In memory; nothing of what has none.
std::vector<int64_t> shape_in(const StepPlan& plan, const std::string& name) {
    const auto value = std::ranges::find(plan.values, name, &StepValue::name);
    return value == plan.values.end() ? std::vector<int64_t>() : value->shape;
}

TEST(LayOut, ConvolutionsNeedNoCopies) {
    const schedules::Declared step = channels_first(64, 64, 28);
    const StepPlan as_declared = plan_laid_out(step, false, bf16), laid_out = plan_laid_out(step, true, bf16);
    EXPECT_THAT(kernels_of(as_declared), Contains(HasSubstr("channels_last")));
    EXPECT_THAT(kernels_of(laid_out), Not(Contains(HasSubstr("channels_last"))));
    EXPECT_LT(laid_out.seconds(), 0.95 * as_declared.seconds());
    EXPECT_THAT(as_declared.laid_out, IsEmpty());
    EXPECT_THAT(laid_out.laid_out,
                AllOf(Contains("top: without dimensions of one element"), Contains("x_bf16: dimensions 0, 2, 3, 1"),
                      Contains("wz_bf16: dimensions 0, 2, 3, 1"), Contains("z, h: dimensions 0, 2, 3, 1"),
                      Contains(StartsWith("kernels that touch these take "))));
    for (const std::string& what : laid_out.laid_out) {
        EXPECT_THAT(laid_out.text(), HasSubstr("laid out: " + what + "\n"));
        EXPECT_THAT(explain(laid_out), HasSubstr("laid out: " + what + "\n"));
    }
    EXPECT_EQ(shape_in(as_declared, "z"), (std::vector<int64_t>{64, 64, 28, 28}));
    EXPECT_EQ(shape_in(laid_out, "z"), (std::vector<int64_t>{64, 28, 28, 64}));
    EXPECT_EQ(shape_in(laid_out, "top"), (std::vector<int64_t>{64}));
    EXPECT_EQ(shape_in(laid_out, "out"), (std::vector<int64_t>{64, 64, 28, 28}));  // a result is as declared
    EXPECT_THAT(faults_of(laid_out), IsEmpty());
}

/// Whole numbers so small that sums in any order, and 16 bits, have all of them.
TEST(LayOut, ResultsAreAsDeclared) {
    const schedules::Declared step = channels_first(2, 32, 14);
    Bindings data = random_bindings(step.outputs, 7);
    for (auto& [name, array] : data.inputs) fill_integers(array, -1, 1, 11);
    auto results = [&](bool lay_out) {
        return run_step(PlannedStep(plan_laid_out(step, lay_out, bf16), open_device("emulated")), step, data);
    };
    expect_same_bits(results(true), results(false));
}

/// At two places: what is read at one comes through tiles of shared memory, which takes hardly longer.
TEST(LayOut, WhatIsReadTransposedIsMadeSo) {
    const Tensor x = input("x", f32, {512, 64}), w = input("w", f32, {256, 64}), z = product_of_rows("z", x, w);
    const Tensor y = compute("y", {256, 512}, [&](Expr j, Expr i) { return tanh(z(i, j)) + z(511 - i, j); });
    const StepPlan plan = plan_laid_out({{y}}, true);
    EXPECT_THAT(plan.laid_out, Contains("z: dimensions 1, 0"));
    EXPECT_LT(plan.seconds(), 0.97 * plan_laid_out({{y}}, false).seconds());
    const Bindings data = random_bindings({y}, 5);
    expect_same_bits(interpret_step(plan, data), interpret_plain({y}, data));
}

/// Who reads what it is made of otherwise, sees that as it is declared; so does an operand of its own.
TEST(LayOut, PartsSeeWhatTheyAreDeclaredOf) {
    const Tensor x = input("x", f32, {48, 40});
    const Axis k = reduce_axis("k", 40);
    const Tensor top = compute("top", {48, 1}, [&](Expr i, Expr j) { return reduce_max(x(i, k), k) + cast(f32, j); });
    const Tensor low = compute("low", {48, 40}, [&](Expr i, Expr j) { return x(i, j) - top(i, 0); });
    auto declare = [](const std::vector<Tensor>& in) {
        return std::vector{compute("half", {48, 40}, [&](Expr i, Expr j) { return in[0](i, j) * 0.5; })};
    };
    auto schedule = [=](const std::vector<Tensor>& in, const Target& target) {
        Schedule s(declare(in), target);
        s.bind(s.data_loops(s.outputs()[0])[0], thread);
        return s;
    };
    const Tensor half = with_schedule("half", {low}, declare, schedule)[0];
    const Tensor turned = compute("turned", {40, 48}, [&](Expr j, Expr i) { return half(i, j) + low(i, j); });
    const StepPlan plan = plan_laid_out({{turned}}, true);
    EXPECT_THAT(plan.laid_out, Contains("top: without dimensions of one element"));
    EXPECT_EQ(shape_in(plan, "low"), (std::vector<int64_t>{48, 40}));
    EXPECT_TRUE(
        std::ranges::any_of(plan.groups, [](const StepGroup& group) { return group.selection->name == "half"; }));
    const Bindings data = random_bindings({turned}, 3);
    expect_same_bits(interpret_step(plan, data), interpret_plain({turned}, data));
}

TEST(LayOut, NothingIsTriedWhereNothingIsWanted) {
    const schedules::Declared step = step_of_layers(2, 64, 48);
    Registry registry;
    size_t tried = 0;
    registry.add("count", [&](const std::vector<Tensor>&, const Target&) {
        ++tried;
        return std::optional<Schedule>();
    });
    for (bool lay_out : {false, true}) {
        const size_t before = std::exchange(tried, 0);
        EXPECT_THAT(plan_step(step, target("sm_90a"), registry, {.lay_out = lay_out}).laid_out, IsEmpty());
        if (lay_out) {
            EXPECT_EQ(tried, before);
        }
    }
}

}  // namespace
}  // namespace tw

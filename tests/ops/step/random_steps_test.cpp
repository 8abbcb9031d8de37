// Steps that nobody has thought of: random graphs of maps, sums, products and windows, cut, placed, and run in any
// order that the plan allows. TW_FUZZ_STEPS sets their number (1,000), TW_FUZZ_SEED the seed.
#include <algorithm>
#include <utility>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/step/interpret_step.h"
#include "ops/step/planned_step.h"
#include "tests/ops/step/random_step.h"
#include "tests/ops/step/small_steps.h"
#include "tests/ops/step/with_all_kept.h"
#include "tests/support/on_device.h"
#include "tests/verify/fuzz_seed.h"
#include "verify/random_computation.h"

namespace tw {
namespace {

using testing::IsEmpty;

/// Any of the orders in which each group comes behind those that it waits for.
std::vector<int> random_order(const StepPlan& plan, fuzz::Random& random) {
    std::vector<int> order, open(plan.groups.size());
    for (size_t g = 0; g < open.size(); ++g) open[g] = static_cast<int>(g);
    while (!open.empty()) {
        std::vector<int> ready;
        for (int g : open)
            if (std::ranges::all_of(plan.groups[static_cast<size_t>(g)].after,
                                    [&](int before) { return std::ranges::count(order, before) > 0; }))
                ready.push_back(g);
        order.push_back(random.pick(ready));
        std::erase(open, order.back());
    }
    return order;
}

void expect_equal(const std::vector<HostArray>& got, const std::vector<HostArray>& expected, const Match& match) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t k = 0; k < got.size(); ++k) {
        if (got[k].num_elements() == 0) continue;
        std::vector<int64_t> at(got[k].shape.size());
        do {
            ASSERT_TRUE(matches(got[k].at(at), expected[k].at(at), match)) << "result " << k;
        } while (advance(at, got[k].shape));
    }
}

std::vector<HostArray> run_on_device(StepPlan plan, const std::shared_ptr<Device>& device, const Bindings& data,
                                     const std::vector<Tensor>& results, bool branches = false) {
    plan.branches = branches;
    const PlannedStep step(plan, device);
    for (const auto& [name, array] : data.inputs) step.set(name, array);
    step.run();
    std::vector<HostArray> got;
    for (const Tensor& result : results) got.push_back(step.get(result.name()));
    return got;
}

class RandomSteps : public OnDevice {};
TW_ON_EACH_DEVICE(RandomSteps);

/// A step, and what it makes of its data.
struct Case {
    int64_t number;
    StepPlan plan;
    std::vector<Tensor> results;
    Bindings data;
    std::vector<HostArray> expected;
    bool branches;
};

/// Runs and empties them. Their kernels are compiled at once, where runs find them: a compiler for each step would take
/// longer than all else.
void expect_as_kernels(std::vector<Case>& cases, const std::shared_ptr<Device>& device) {
    std::vector<Program> programs;
    for (const Case& each : cases)
        for (const StepGroup& group : each.plan.groups) programs.push_back(group.selection->program);
    const std::vector<Executable> loaded = Executable::load(std::move(programs), device);
    for (const Case& each : std::exchange(cases, {})) {
        SCOPED_TRACE(fmt::format("case {}, as kernels{}", each.number, each.branches ? " with branches" : ""));
        expect_equal(run_on_device(each.plan, device, each.data, each.results, each.branches), each.expected,
                     equal_values);
        if (testing::Test::HasFailure()) return void(fmt::print("{}", each.plan.text()));
    }
}

TEST_P(RandomSteps, AreWhatIsDeclared) {
    const uint64_t seed = fuzz::fuzz_seed();
    const int64_t count = fuzz::number_from_environment("TW_FUZZ_STEPS", 1000);
    const bool is_gpu = device_->kind() == DeviceKind::Cuda;
    int64_t joined = 0, replaced = 0, reused = 0, nodes = 0, as_kernels = 0, laid_out = 0;
    std::vector<Case> cases;
    for (int64_t number = 0; number < count && !testing::Test::HasFailure(); ++number) {
        SCOPED_TRACE(fmt::format("case {} of seed {}", number, seed));
        fuzz::Random random(seed, static_cast<uint64_t>(number));
        const schedules::Declared step = random_step(random);
        const StepPlan plan = plan_step(step, target("sm_90a"), {}, {.memory_nodes = random.chance(0.5)});
        ASSERT_THAT(faults_of(plan), IsEmpty()) << plan.text();
        Bindings data = random_bindings(step.outputs, random.next());
        for (auto& [name, array] : data.inputs) fill_integers(array, -2, 2, random.next());
        const std::vector<HostArray> expected = interpret_plain(step.outputs, data);
        expect_equal(interpret_step(plan, data, random_order(plan, random)), expected, bitwise);
        for (const StepGroup& group : plan.groups) joined += group.operations.size() > 1;
        for (const StepValue& value : plan.values) replaced += value.place == StepValue::Place::Replaced;
        int64_t bytes = 0;
        for (const StepValue& value : plan.values)
            if (value.place == StepValue::Place::Arena) bytes += value.bytes;
        reused += bytes > plan.arena_bytes;
        for (const StepGroup& group : plan.groups) nodes += group.memory.has_value();
        laid_out += !plan.laid_out.empty();
        if (!is_gpu || number % 2 == 0)
            cases.push_back({number, plan, step.outputs, data, expected, random.chance(0.5)});
        as_kernels += !is_gpu || number % 2 == 0;
        if (cases.size() == 32 || number + 1 == count) expect_as_kernels(cases, device_);
    }
    fmt::print(
        "{} steps, {} as kernels: {} groups of several operations, {} results in place, {} arenas used again, "
        "{} nodes without a kernel, {} laid out otherwise\n",
        count, as_kernels, joined, replaced, reused, nodes, laid_out);
    EXPECT_GT(laid_out, count / 200);
    EXPECT_GT(nodes, count / 50);
    EXPECT_GT(joined, count / 8);
    EXPECT_GT(replaced, count / 4);
    EXPECT_GT(reused, count / 50);
}

/// Of values with 16 bits, which of these data are exact: factors are as declared, orders and kernels make no
/// difference.
TEST_P(RandomSteps, OfMixedPrecisionAreWhatTheirPlanSays) {
    const uint64_t seed = fuzz::fuzz_seed() + 1;
    const int64_t count = fuzz::number_from_environment("TW_FUZZ_STEPS", 1000) / 10;
    size_t rounded = 0, stored = 0;
    for (int64_t number = 0; number < count && !testing::Test::HasFailure(); ++number) {
        SCOPED_TRACE(fmt::format("case {} of seed {}", number, seed));
        fuzz::Random random(seed, static_cast<uint64_t>(number));
        const schedules::Declared step = random_step(random);
        const StepPlan plan = plan_step(step, target("sm_90a"), {}, {.mixed = {.values = bf16}});
        ASSERT_THAT(faults_of(plan), IsEmpty()) << plan.text();
        Bindings data = random_bindings(step.outputs, random.next());
        for (auto& [name, array] : data.inputs) fill_integers(array, -2, 2, random.next());
        const std::vector<HostArray> expected = interpret_step(plan, data);
        expect_equal(interpret_step(plan, data, random_order(plan, random)), expected, bitwise);
        const MixedStep mixed = mixed_precision(step, {.values = bf16});
        rounded += !mixed.rounded.empty();
        stored += !mixed.stored.empty();
        if (mixed.stored.empty()) expect_equal(interpret_plain(mixed.step.outputs, data), expected, bitwise);
        if (number % 10 == 0) expect_equal(run_on_device(plan, device_, data, step.outputs), expected, equal_values);
        if (testing::Test::HasFailure()) fmt::print("{}", plan.text());
    }
    fmt::print("{} steps of mixed precision: {} with rounded factors, {} with rounded values\n", count, rounded,
               stored);
    EXPECT_GT(rounded, 0u);
    EXPECT_GT(stored, 0u);
}

/// Down the loss of a network of products, maps, sums and norms, each of any that came before.
schedules::Declared random_network(fuzz::Random& random) {
    const int64_t rows = 8 * random.between(1, 3), width = 8 * random.between(1, 3);
    std::vector<Tensor> made{input("x", f32, {rows, width})}, weights;
    for (int64_t n = random.between(4, 9); n > 0; --n) {
        const Tensor &a = random.chance(0.6) ? made.back() : random.pick(made), &b = random.pick(made);
        const std::string name = fmt::format("h{}", n);
        if (random.chance(0.4) || (n == 1 && weights.empty())) {
            weights.push_back(input("w" + name, f32, {width, width}));
            made.push_back(product_of_rows(name, a, weights.back()));
        } else if (random.chance(0.2)) {
            made.push_back(schedules::layer_norm(name, a, 1, {}));
        } else if (random.chance(0.4)) {
            made.push_back(compute(name, {rows, width}, [&](Expr i, Expr j) { return a(i, j) * b(i, j) + a(i, j); }));
        } else {
            made.push_back(compute(name, {rows, width}, [&](Expr i, Expr j) { return tanh(a(i, j)); }));
        }
    }
    return step_towards(input("y", f32, {rows, width}), made.back(), weights);
}

/// Any operations between any others: also regions as no network has them.
std::vector<MadeBetween> random_regions(const schedules::Declared& step, fuzz::Random& random) {
    std::vector<Tensor> computed;
    for (const auto& operation : operations_of({step.outputs[random.chance(0.8) ? 0 : 1]}))
        if (!operation->is_input()) computed.emplace_back(operation, 0);
    std::vector<MadeBetween> regions;
    for (int64_t n = random.between(1, 3); n-- > 0;) {
        std::vector<Tensor> inputs;
        for (const Tensor& each : computed)
            if (random.chance(0.1)) inputs.push_back(each);
        regions.push_back(made_between(inputs, {random.pick(computed)}));
    }
    return regions;
}

int64_t num_again(const StepPlan& plan) {
    return std::ranges::count_if(plan.groups, [](const StepGroup& group) { return group.again_of >= 0; });
}

/// With less memory, if there is a plan that has less.
StepPlan smaller(const StepPlan& plan, const schedules::Declared& step, StepOptions options) {
    options.recompute.bytes = plan.arena_bytes * 19 / 20;
    try {
        StepPlan found = plan_step(step, target("sm_90a"), {}, options);
        EXPECT_LE(found.arena_bytes, options.recompute.bytes);
        return found;
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("with all made again that saves memory"));
        return plan;
    }
}

/// By the same kernels in another order, some of them twice: not a bit is another one.
TEST_P(RandomSteps, MadeAgainHaveTheSameBits) {
    const uint64_t seed = fuzz::fuzz_seed() + 2;
    const int64_t count = fuzz::number_from_environment("TW_FUZZ_STEPS", 1000) / 100;
    int64_t of_regions = 0, to_fit = 0;
    for (int64_t number = 0; number < count && !testing::Test::HasFailure(); ++number) {
        SCOPED_TRACE(fmt::format("case {} of seed {}", number, seed));
        fuzz::Random random(seed, static_cast<uint64_t>(number));
        const schedules::Declared step = random_network(random);
        StepOptions options{.mixed = {.values = random.chance(0.3) ? bf16 : f32}};
        const Bindings data = random_bindings(step.outputs, random.next());
        if (random.chance(0.9)) options.recompute.regions = random_regions(step, random);
        const StepPlan again = plan_step(step, target("sm_90a"), {}, options), kept = with_all_kept(again);
        const std::vector<HostArray> expected = interpret_step(kept, data);
        StepPlan plan = again;
        for (int k = 0; k < 2; ++k) plan = smaller(plan, step, options);
        of_regions += num_again(again) > 0;
        to_fit += num_again(plan) > num_again(again);
        for (const StepPlan* each : {&again, static_cast<const StepPlan*>(&plan)}) {
            ASSERT_THAT(faults_of(*each), IsEmpty()) << each->text();
            expect_equal(interpret_step(*each, data), expected, bitwise);
            expect_equal(interpret_step(*each, data, random_order(*each, random)), expected, bitwise);
        }
        if (number % 10 == 0)
            expect_equal(run_on_device(plan, device_, data, step.outputs, true),
                         run_on_device(kept, device_, data, step.outputs), bitwise);
        if (testing::Test::HasFailure()) fmt::print("{}", plan.text(false));
    }
    fmt::print("{} steps: {} with regions made again, {} with more to fit\n", count, of_regions, to_fit);
    EXPECT_GT(of_regions + to_fit, 0);
}

}  // namespace
}  // namespace tw

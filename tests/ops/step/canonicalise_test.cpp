// A step in fewer operations has the same bits, by the interpreter; and so it is behind each pass of plan_step().
#include "ops/step/canonicalise.h"

#include <chrono>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "dsl/own_schedule.h"
#include "ops/check.h"
#include "ops/step/interpret_step.h"
#include "ops/step/step_parts.h"
#include "schedules/replace_tensors.h"
#include "schedules/views.h"
#include "tests/ops/step/random_step.h"
#include "tests/ops/step/small_steps.h"
#include "tests/ops/step/step_results.h"
#include "tests/verify/fuzz_seed.h"

namespace tw {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> names_in(const schedules::Declared& step) {
    std::vector<std::string> names;
    const StepParts parts(step.outputs);
    for (const auto& operation : parts.operations()) names.push_back(operation->name);
    return names;
}

Tensor named_in(const Tensor& of, const std::string& name) {
    for (const auto& operation : operations_of({of}))
        if (operation->name == name) return {operation, 0};
    throw std::runtime_error("there is no " + name);
}

std::string body_of(const Tensor& tensor) { return to_string(tensor.operation()->outputs[0].body); }

Tensor exp_of(const std::string& name, const Tensor& x) {
    return compute(name, {x.shape().begin(), x.shape().end()}, [&](const std::vector<Expr>& at) {
        return exp(x.read({at.begin(), at.end()}));
    });
}
Tensor sum_of(const std::string& name, const Tensor& a, const Tensor& b) {
    return compute(name, {a.shape().begin(), a.shape().end()}, [&](const std::vector<Expr>& at) {
        return a.read({at.begin(), at.end()}) + b.read({at.begin(), at.end()});
    });
}
Tensor row_sums(const std::string& name, const Tensor& x) {
    const Axis k = reduce_axis(name + "_axis", x.shape()[1]);
    return compute(name, {x.shape()[0]}, [&](Expr i) { return sum(x(i, k), k); });
}

TEST(Canonicalise, KeepsOneOfEqualOperations) {
    const Tensor x = input("x", f32, {4, 6});
    const Tensor mean = row_sums("mean", x), again = row_sums("again", x), other = row_sums("other", exp_of("e", x));
    const Tensor a = exp_of("a", mean), b = exp_of("b", again);
    const CanonicalStep found = canonicalise({{sum_of("r", a, other), sum_of("s", b, again)}});
    EXPECT_THAT(names_in(found.step), ElementsAre("x", "mean", "a", "e", "other", "r", "s"));
    EXPECT_THAT(found.simplified, ElementsAre("again is mean", "b is a"));
    EXPECT_EQ(body_of(found.step.outputs[1]), "a[i] + mean[i]");
}

TEST(Canonicalise, TellsApartWhatDiffers) {
    const Tensor x = input("x", f32, {6, 6});
    auto declared = [&](const std::string& name, const std::function<Expr(Expr, Expr, const Axis&)>& body) {
        const Axis k = reduce_axis("k", 6);
        return compute(name, {6, 6}, [&](Expr i, Expr j) { return body(i, j, k); });
    };
    const Axis shorter = reduce_axis("k", 5);
    std::vector<Tensor> all{
        declared("a", [&](Expr i, Expr j, const Axis& k) { return sum(x(i, k) * x(k, j), k); }),
        declared("b", [&](Expr i, Expr j, const Axis& k) { return sum(x(k, i) * x(k, j), k); }),
        declared("c", [&](Expr i, Expr j, const Axis& k) { return reduce_max(x(i, k) * x(k, j), k); }),
        declared("d", [&](Expr i, Expr j, const Axis&) { return sum(x(i, shorter) * x(shorter, j), shorter); }),
        declared("e", [&](Expr i, Expr j, const Axis&) { return x(i, j) + 0.0; }),
        declared("f", [&](Expr i, Expr j, const Axis&) { return x(i, j) + constant(f32, -0.0); }),
        declared("g", [&](Expr i, Expr j, const Axis&) { return x(j, i) + 0.0; })};
    Tensor total = all[0];
    for (size_t k = 1; k < all.size(); ++k) total = sum_of("t" + std::to_string(k), total, all[k]);
    EXPECT_THAT(canonicalise({{total}}).simplified, IsEmpty());
}

TEST(Canonicalise, ResultsAndOverwritersStay) {
    const Tensor x = input("x", f32, {4});
    const Tensor first = exp_of("first", x), second = exp_of("second", x), inner = exp_of("inner", x);
    const CanonicalStep found = canonicalise({{first, second, sum_of("r", inner, x)}});
    EXPECT_THAT(names_in(found.step), ElementsAre("x", "first", "second", "r"));
    EXPECT_EQ(body_of(found.step.outputs[2]), "first[i] + x[i]");
    // Who reads what overwrites x would have to come behind it.
    const CanonicalStep overwriting = canonicalise({{first, sum_of("r", inner, x)}, {{first, x}}});
    EXPECT_THAT(names_in(overwriting.step), ElementsAre("x", "first", "inner", "r"));
    ASSERT_EQ(overwriting.step.in_place.size(), 1u);
    EXPECT_TRUE(overwriting.step.in_place[0].first.same(overwriting.step.outputs[0]));
    // What mixed precision is to leave as it is.
    EXPECT_THAT(canonicalise({{sum_of("r", inner, second)}}, {}, {"second"}).simplified, IsEmpty());
}

TEST(Canonicalise, NumbersStandInTheirReaders) {
    const Tensor x = input("x", f32, {4});
    const Tensor one = compute("one", {}, [](const std::vector<Expr>&) { return constant(f32, 1.0); });
    const Tensor two = compute("two", {4}, [&](Expr) { return one() + 1.0; });
    const Tensor zero = compute("zero", {4}, [&](Expr i) { return two(i) - 2.0; });
    const Tensor y = compute("y", {4}, [&](Expr i) { return one() * x(i) * two(i); });
    const Tensor z = compute("z", {4}, [&](Expr i) { return x(i) + zero(i); });       // -0 + 0 is no -0
    const Tensor w = compute("w", {4}, [&](Expr i) { return exp(x(i) - zero(i)); });  // x - 0 is x
    const Tensor v = compute("v", {4}, [&](Expr i) { return exp(two(i)) + x(i); });   // the machine's exp
    const CanonicalStep found = canonicalise({{y, z, w, v}});
    EXPECT_THAT(names_in(found.step), ElementsAre("x", "y", "z", "w", "v"));
    EXPECT_THAT(found.simplified,
                ElementsAre("one is 1.0 everywhere", "two is 2.0 everywhere", "zero is 0.0 everywhere"));
    std::vector<std::string> bodies;
    for (const Tensor& output : found.step.outputs) bodies.push_back(body_of(output));
    EXPECT_THAT(bodies, ElementsAre("x[i] * 2.0", "x[i] + 0.0", "exp(x[i])", "exp(2.0) + x[i]"));
    // A result is a tensor, though its readers know what it is.
    EXPECT_THAT(names_in(canonicalise({{one, y}}).step), ElementsAre("one", "x", "y"));
}

/// Where a number decides that an input is not read, the step stays: memory that is given for it is asked for.
TEST(Canonicalise, LosesNoInput) {
    const Tensor x = input("x", f32, {4}), unread = input("unread", f32, {4});
    const Tensor yes = compute("yes", {}, [](const std::vector<Expr>&) { return Expr(true); });
    const Tensor y = compute("y", {4}, [&](Expr i) { return select(yes(), x(i), unread(i)); });
    EXPECT_THAT(names_in(canonicalise({{y}}).step), ElementsAre("yes", "x", "unread", "y"));
}

TEST(Canonicalise, ViewsOfViewsAreOne) {
    const Tensor x = input("x", f32, {4, 6, 8});
    const Tensor turned = schedules::permute("turned", x, {2, 0, 1}), part = schedules::slice("part", turned, 0, 2, 7),
                 further = schedules::slice("further", part, 0, 1, 3);
    const CanonicalStep found = canonicalise({{exp_of("y", further)}});
    EXPECT_THAT(names_in(found.step), ElementsAre("x", "further", "y"));
    EXPECT_EQ(to_string(*operations_of(found.step.outputs)[1]), "further[i, j, p] = x[j, p, i + 3]");
    // There and back.
    const Tensor back = schedules::permute("back", turned, {1, 2, 0}), flat = schedules::reshape("flat", x, {24, 8}),
                 whole = schedules::reshape("whole", flat, {4, 6, 8});
    const CanonicalStep same = canonicalise({{exp_of("y", back), exp_of("z", whole)}});
    EXPECT_THAT(same.simplified, ElementsAre("back is x", "whole is x"));
    EXPECT_EQ(body_of(same.step.outputs[1]), "exp(x[i, j, p])");
    // What needs no place stays.
    const Tensor of_flat = schedules::slice("of_flat", flat, 0, 3, 7);
    EXPECT_THAT(names_in(canonicalise({{exp_of("y", of_flat)}}).step), ElementsAre("x", "flat", "of_flat", "y"));
    // Behind an edge.
    const Tensor padded_view = compute("edge", {10}, [&](Expr i) { return padded(input("r", f32, {8}), 0.5)(i - 1); });
    const Tensor of_edge = schedules::slice("of_edge", padded_view, 0, 0, 4);
    const schedules::Declared edges{{exp_of("y", of_edge)}};
    const CanonicalStep edge = canonicalise(edges);
    EXPECT_THAT(names_in(edge.step), ElementsAre("r", "of_edge", "y"));
    const Bindings data = random_bindings(edges.outputs, 5);
    expect_same_bits(interpret_plain(edge.step.outputs, data), interpret_plain(edges.outputs, data));
}

TEST(Canonicalise, ComputesNothingForNobody) {
    const Tensor x = input("x", f32, {4});
    const std::vector<Tensor> both = compute_tuple("both", {"up", "down"}, {4}, [&](const std::vector<Expr>& at) {
        return std::vector{x(at[0]) + 1.0, x(at[0]) - 1.0};
    });
    const CanonicalStep found = canonicalise({{exp_of("y", both[1])}});
    EXPECT_THAT(found.simplified, ElementsAre("nobody reads up"));
    ASSERT_EQ(operations_of(found.step.outputs)[1]->outputs.size(), 1u);
    EXPECT_EQ(body_of(found.step.outputs[0]), "exp(down[i])");
    const Axis k = reduce_axis("k", 4);
    const std::vector<Tensor> top =
        compute_tuple("top", {"value", "place"}, {}, [&](const std::vector<Expr>&) { return argmax(x(k), k); });
    EXPECT_THAT(canonicalise({{exp_of("y", top[0])}}).simplified, IsEmpty());
}

TEST(Canonicalise, PartsReadWhatStaysInPlaceOfOthers) {
    const auto declare = [](const std::vector<Tensor>& in) { return std::vector{exp_of("made", in[0])}; };
    const auto schedule = [&](const std::vector<Tensor>& in, const Target& target) {
        return Schedule(declare(in), target);
    };
    const Tensor x = input("x", f32, {4});
    const Tensor a = exp_of("a", x), b = exp_of("b", x);
    const Tensor of_a = with_schedule("own", {a}, declare, schedule)[0],
                 of_b = with_schedule("own", {b}, declare, schedule)[0];
    const CanonicalStep found = canonicalise({{of_a, sum_of("r", of_b, b)}});
    EXPECT_THAT(found.simplified, ElementsAre("b is a"));
    const StepParts parts(found.step.outputs);
    EXPECT_TRUE(found.step.outputs[0].same(of_a));
    int count = 0;
    for (const auto& operation : parts.operations())
        if (const auto* result = parts.result_of(*operation)) {
            ++count;
            EXPECT_TRUE(result->part->operands[0].same(a));
        }
    EXPECT_EQ(count, 2);
}

/// A value that is kept is not replaced by one that is made again, nor the other way around.
TEST(Canonicalise, RegionsKeepWhatTheyKept) {
    const Tensor x = input("x", f32, {4});
    const Tensor before = exp_of("before", x), inside = exp_of("inside", x), late = exp_of("late", x);
    const Tensor end = sum_of("end", sum_of("more", inside, exp_of("twin", x)), x);
    const Tensor y = sum_of("y", sum_of("z", end, before), late);
    const MadeBetween region{{inside, named_in(end, "twin"), named_in(end, "more")}, {end}};
    const CanonicalStep kept = canonicalise({{y}}, {region});
    EXPECT_THAT(kept.simplified, ElementsAre("twin is inside", "late is before"));
    EXPECT_THAT(names_in(kept.step), ElementsAre("x", "inside", "more", "end", "before", "z", "y"));
    ASSERT_EQ(kept.regions.size(), 1u);
    EXPECT_TRUE(kept.regions[0].inside[0].same(inside));
    EXPECT_THAT(kept.regions[0].inside, testing::SizeIs(2));
    EXPECT_EQ(kept.regions[0].results[0].name(), "end");
}

// ---- random steps ---------------------------------------------------------------------------------------------------

/// With what nobody would write: operations once more, ones and zeros, elements shown through views, there and back.
schedules::Declared entangled(schedules::Declared step, fuzz::Random& random) {
    int number = 0;
    auto name = [&](const char* what) { return fmt::format("{}{}", what, number++); };
    std::vector<Tensor> made;
    for (const auto& operation : operations_of(step.outputs))
        if (!operation->is_input() && operation->outputs.size() == 1 && !operation->shape.empty())
            made.emplace_back(operation, 0);
    const size_t count = step.outputs.size();
    for (int k = 0; k < 3 && !made.empty(); ++k) {
        const Tensor a = random.pick(made);
        const Tensor again(
            schedules::declared_again(*a.operation(), name("again"), schedules::bodies_of(*a.operation())), 0);
        const Tensor one = compute(name("one"), {}, [](const std::vector<Expr>&) { return constant(f32, 1.0); });
        const Tensor zero = compute(name("zero"), {}, [&](const std::vector<Expr>&) { return one() - 1.0; });
        std::vector<int> order(a.shape().size());
        for (size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int>(order.size() - 1 - d);
        const Tensor turned = schedules::permute(name("turned"), again, order),
                     back = schedules::permute(name("back"), turned, order);
        step.outputs.push_back(
            compute(name("more"), {a.shape().begin(), a.shape().end()}, [&](const std::vector<Expr>& at) {
                const std::vector<Operand> own(at.begin(), at.end());
                return cast(f32, back.read(own)) * one() + zero() + cast(f32, a.read(own)) * (one() - zero());
            }));
        if (random.chance(0.3) && count > 0) made.push_back(step.outputs.back());
    }
    return step;
}

/// Also NaN, infinities and -0.
void fill_any(HostArray& array, fuzz::Random& random) {
    fill_integers(array, -2, 2, random.next());
    if (!is_float(array.type) || array.num_elements() == 0) return;
    const double odd[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity(), -0.0};
    std::vector<int64_t> at(array.shape.size());
    do {
        if (random.chance(0.2)) array.set(at, make_value(array.type, odd[random.below(4)]));
    } while (advance(at, array.shape));
}

TEST(Canonicalise, ViewsOfNothingStay) {
    const Tensor x = input("x", f32, {5, 0});
    const Tensor turned = compute("turned", {0, 5}, [&](Expr i, Expr j) { return x(j, i); });
    EXPECT_FALSE(schedules::reshaped_from(*turned.operation()).has_value());
    EXPECT_EQ(canonicalise({{turned}}).step.outputs[0].name(), "turned");
}

TEST(Canonicalise, RandomStepsHaveTheSameBits) {
    const uint64_t seed = fuzz::fuzz_seed();
    const int64_t count = fuzz::number_from_environment("TW_FUZZ_STEPS", 1000);
    std::map<std::string, int> fired;
    for (int64_t number = 0; number < count && !testing::Test::HasFailure(); ++number) {
        SCOPED_TRACE(fmt::format("case {} of seed {}", number, seed));
        fuzz::Random random(seed, static_cast<uint64_t>(number));
        const schedules::Declared step = entangled(random_step(random), random);
        const CanonicalStep found = canonicalise(step);
        Bindings data = random_bindings(step.outputs, random.next());
        for (auto& [name, array] : data.inputs) fill_any(array, random);
        expect_same_bits(interpret_plain(found.step.outputs, data), interpret_plain(step.outputs, data));
        for (size_t k = 0; k < step.outputs.size(); ++k)
            EXPECT_EQ(found.step.outputs[k].name(), step.outputs[k].name());
        for (const std::string& what : found.simplified)
            ++fired[what.ends_with("everywhere") ? "number" : what.starts_with("back") ? "view" : "equal"];
        EXPECT_THAT(canonicalise(found.step).simplified, IsEmpty());
    }
    for (const char* what : {"number", "view", "equal"}) EXPECT_GT(fired[what], count / 4) << what;
}

/// Declarations behind the passes that change one, plans behind all others.
TEST(StepPasses, EachLeavesAStepOfTheSameBits) {
    for (int64_t number = 0; number < 8; ++number) {
        fuzz::Random random(fuzz::fuzz_seed() + 3, static_cast<uint64_t>(number));
        schedules::Declared step = entangled(random_step(random), random);
        Bindings data = random_bindings(step.outputs, random.next());
        for (auto& [name, array] : data.inputs) fill_integers(array, -2, 2, random.next());
        const std::vector<HostArray> expected = interpret_plain(step.outputs, data);
        std::vector<std::string> seen;
        StepOptions options;
        options.watch = [&](const StepStage& stage) {
            SCOPED_TRACE(fmt::format("case {}, after {}", number, stage.pass));
            seen.emplace_back(stage.pass);
            if (stage.plan) {
                EXPECT_THAT(faults_of(*stage.plan), IsEmpty());
            }
            expect_same_bits(stage.plan ? interpret_step(*stage.plan, data) : interpret_plain(stage.step.outputs, data),
                             expected);
        };
        plan_step(step, target("sm_90a"), {}, options);
        std::vector<std::string> all = step_pass_names();
        all.insert(all.begin(), "declared");
        EXPECT_EQ(seen, all);
    }
}

TEST(StepPasses, CanBeReadBeforeAndAfter) {
    const Tensor x = input("x", f32, {8, 8}), w = input("w", f32, {8, 8});
    const Tensor z = product_of_rows("z", x, w), again = product_of_rows("again", x, w);
    const schedules::Declared step{{sum_of("next", z, again)}, {{sum_of("next", z, again), w}}};
    std::map<std::string, std::string> texts;
    StepOptions options{.mixed = {.values = bf16}};
    options.watch = [&](const StepStage& stage) { texts[std::string(stage.pass)] = stage.text(); };
    plan_step({{step.outputs[0]}}, target("sm_90a"), {}, options);
    EXPECT_THAT(texts["declared"], HasSubstr("again[i, j] = sum_r x[i, r] * w[j, r]\n"));
    EXPECT_THAT(texts["declared"], HasSubstr("x f32 [8, 8]\n"));
    EXPECT_THAT(texts["declared"], HasSubstr("results: next\n"));
    EXPECT_THAT(texts["canonicalise"], HasSubstr("next[i, j] = z[i, j] + z[i, j]\n"));
    EXPECT_THAT(texts["canonicalise"], testing::Not(HasSubstr("again")));
    EXPECT_THAT(texts["round"], HasSubstr("x_bf16[i, j] = cast(bf16, x[i, j])\n"));
    EXPECT_THAT(texts["cut"], HasSubstr("simplified: again is z\n"));
    const Tensor next = compute("next", {8, 8}, [&](Expr i, Expr j) { return w(i, j) * 0.5; });
    plan_step({{next}, {{next, w}}}, target("sm_90a"), {}, options);
    EXPECT_THAT(texts["declared"], HasSubstr("next overwrites w\n"));
}

/// 800 operations are looked through in the time of a kernel's text.
TEST(Canonicalise, IsQuick) {
    const schedules::Declared step = step_of_blocks(12, 64, 32);
    const auto begin = std::chrono::steady_clock::now();
    canonicalise(step);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    fmt::print("{} operations: {:.2f} ms\n", operations_of(step.outputs).size(), seconds * 1e3);
    EXPECT_LT(seconds, 0.1);
}

}  // namespace
}  // namespace tw

// What is read beside sums of tensor cores while results are made of them: an iteration ahead.
#include <random>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/program.h"
#include "ops/runner.h"
#include "schedules/tensor_product.h"

namespace tw::schedules {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const Axis terms = reduce_axis("k", 64);
const Tensor left = input("a", bf16, {256, 64}), right = input("b", bf16, {384, 64});
Expr product(const Expr& i, const Expr& j) {
    return sum(cast(f32, left(i, terms)) * cast(f32, right(j, terms)), terms);
}

/// Of tiles by two groups of warps in turn.
Schedule in_turns(const Tensor& c) {
    Schedule s({c}, target("sm_90a"));
    schedule_tensor_product(s, c, left, right,
                            WarpgroupTiles{.block_m = 128,
                                           .block_n = 192,
                                           .warpgroups = 1,
                                           .ping_pong = 2,
                                           .stages = 2,
                                           .stage_result = true,
                                           .epilogue_columns = 64,
                                           .store_boxes = true});
    return s;
}

void expect_as_declared(const Schedule& s, const Tensor& c) {
    Runner runner(s, open_device("emulated"));
    const uint64_t seed = std::random_device()();
    runner.set(random_bindings({c}, seed));
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text << ", seed " << seed;
}

/// A gradient through a function of another tensor's elements, whose parts have short forms.
TEST(ReadBesideResults, WhatAGradientIsMadeOf) {
    const Tensor x = input("x", bf16, {256, 384});
    const Tensor c = compute("c", {256, 384}, [&](Expr i, Expr j) {
        const Expr at = cast(f32, x(i, j));
        const Expr slope = 0.5 * (1 + erf(at * 0.70710678118654752)) + at * exp(at * at * -0.5) * 0.3989422804;
        return cast(bf16, product(i, j) * slope);
    });
    const Schedule s = in_turns(c);
    EXPECT_THAT(build(s).cuda(), AllOf(HasSubstr("x_values_next"), HasSubstr("tw::normal_cdf("),
                                       HasSubstr("tw::exp_nonpositive("), Not(HasSubstr("tw::erf"))));
    expect_as_declared(s, c);
}

/// What is added, of another type.
TEST(ReadBesideResults, AResidual) {
    const Tensor x = input("x", f32, {256, 384});
    const Tensor c = compute("c", {256, 384}, [&](Expr i, Expr j) { return cast(bf16, product(i, j) + x(i, j)); });
    const Schedule s = in_turns(c);
    EXPECT_THAT(build(s).cuda(), HasSubstr("x_values_next"));
    expect_as_declared(s, c);
}

/// Nothing of memory that the kernel writes.
TEST(ReadBesideResults, NotWhatIsOverwritten) {
    const Tensor x = input("x", bf16, {256, 384});
    const Tensor c =
        compute("c", {256, 384}, [&](Expr i, Expr j) { return cast(bf16, product(i, j) + cast(f32, x(i, j))); });
    Schedule s({c}, target("sm_90a"));
    schedule_tensor_product(s, c, left, right,
                            WarpgroupTiles{.block_m = 128, .block_n = 192, .stages = 2, .stage_result = false});
    s.in_place(c, x);
    EXPECT_THAT(build(s).cuda(), Not(HasSubstr("values_next")));
    expect_as_declared(s, c);
}

}  // namespace
}  // namespace tw::schedules

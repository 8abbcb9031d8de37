// Cross-entropy of a linear layer's results and its gradients: that they are, what names ask for, and random shapes.
#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "schedules/linear_cross_entropy.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

const LinearCrossEntropyShape small{.rows = 7, .depth = 8, .vocabulary = 24, .type = f16};

/// log sum_v exp(z[v]) - z[label], z = x w', of numbers that no exponential is too large for.
Tensor formula(const LinearCrossEntropy& e) {
    Axis k = reduce_axis("k", small.depth), v = reduce_axis("v", small.vocabulary);
    Tensor z = compute("z", {small.rows, small.vocabulary},
                       [&](Expr i, Expr j) { return sum(cast(f32, e.x(i, k)) * cast(f32, e.w(j, k)), k); });
    return compute("plain", {small.rows}, [&](Expr i) { return log(sum(exp(z(i, v)), v)) - z(i, e.label(i)); });
}

/// By tiles that divide the vocabulary, and by such that do not.
TEST(LinearCrossEntropy, IsTheFormula) {
    for (int64_t columns : {8, 16}) {
        const LinearCrossEntropy e = declare_linear_cross_entropy(small, columns);
        const Tensor plain = formula(e);
        Bindings bindings = random_bindings({e.loss}, 3);
        fill_integers(bindings.inputs.at("label"), 0, small.vocabulary - 1, 5);
        const HostArray got = interpret_plain({e.loss}, bindings, Precision::Float64)[0],
                        expected = interpret_plain({plain}, bindings, Precision::Float64)[0];
        auto differs = difference("loss", got, expected, near(0, 2e-3));  // logits are rounded
        EXPECT_FALSE(differs) << *differs;
    }
}

TEST(LinearCrossEntropy, GradientsAreThoseOfTheFormula) {
    const LinearCrossEntropy e = declare_linear_cross_entropy(small, 16);
    const LinearCrossEntropyGradients g = declare_linear_cross_entropy_gradients(small);
    const Tensor plain = formula(e);
    const std::vector<Tensor> given{g.dx, g.dw};
    Bindings bindings = random_bindings({g.dx, g.dw}, 4);
    fill_integers(bindings.inputs.at("label"), 0, small.vocabulary - 1, 5);
    const std::vector<HostArray> saved = interpret_plain({e.logits, e.lse}, bindings);
    bindings.inputs["logits"] = saved[0];
    bindings.inputs["lse"] = saved[1];
    const std::vector<HostArray> got = interpret_plain(given, bindings, Precision::Float64),
                                 expected = interpret_plain(gradients(plain, g.dloss, {e.x, e.w}), bindings,
                                                            Precision::Float64);
    for (size_t k = 0; k < got.size(); ++k) {
        auto differs = difference(given[k].name(), got[k], expected[k], near(0, 5e-3));
        EXPECT_FALSE(differs) << *differs;
    }
}

TEST(LinearCrossEntropy, IsAskedForByName) {
    const auto named = parse_linear_cross_entropy("linear_cross_entropy_f16_300x40x1000");
    ASSERT_TRUE(named);
    EXPECT_EQ(named->shape, (LinearCrossEntropyShape{.rows = 300, .depth = 40, .vocabulary = 1000, .type = f16}));
    EXPECT_FALSE(named->gradients);
    EXPECT_TRUE(parse_linear_cross_entropy("linear_cross_entropy_gradients_bf16_300x40x1000")->gradients);
    EXPECT_TRUE(parse_linear_cross_entropy("linear_cross_entropy_gradients_bf16_300x40x1000_part")->parts);
    for (const char* name : {"linear_cross_entropy_bf16_300x40", "linear_cross_entropy_bf16_300x40x1000_part",
                             "linear_cross_entropy_f32_300x40x1000", "linear_cross_entropy_bf16_300x41x1000",
                             "linear_cross_entropy_bf16_300x40x1001"})
        EXPECT_FALSE(parse_linear_cross_entropy(name)) << name;
    EXPECT_EQ(find_kernel("linear_cross_entropy_bf16_300x40x1000")->flops, 2.0 * 300 * 40 * 1000);
    EXPECT_EQ(find_kernel("linear_cross_entropy_gradients_bf16_300x40x1000")->flops, 4.0 * 300 * 40 * 1000);
    EXPECT_EQ(find_kernel("linear_cross_entropy_bf16_300x40x1000")->bytes,
              2 * (1300 * 40 + 300 * 1000) + 300 * (8 + 2 * 4));
    EXPECT_EQ(find_kernel("linear_cross_entropy_gradients_bf16_300x40x1000")->bytes,
              4 * (1300 * 40 + 300 * 1000) + 300 * (8 + 2 * 4));
}

TEST(LinearCrossEntropy, TakesWholePiecesOfRows) {
    EXPECT_ERROR(
        declare_linear_cross_entropy({.rows = 4, .depth = 20, .vocabulary = 64}, 64),
        "linear cross-entropy: rows of 20 and of 64 elements are not whole pieces of 16 bytes; give a depth and "
        "a vocabulary that are multiples of 8");
    EXPECT_ERROR(declare_linear_cross_entropy_gradients({.rows = 4, .depth = 16, .vocabulary = 50257}),
                 "rows of 16 and of 50257 elements are not whole pieces of 16 bytes");
}

class LinearCrossEntropyKernels : public RandomCases {
protected:
    LinearCrossEntropyKernels() : RandomCases(61) {}

    LinearCrossEntropyShape random_shape() {
        return {.rows = between(1, 300),
                .depth = 8 * between(1, 12),
                .vocabulary = 8 * between(1, 60),
                .type = chance() ? bf16 : f16};
    }
    static Bindings random_labels(const Schedule& s, const LinearCrossEntropyShape& shape, uint64_t seed) {
        Bindings bindings = random_bindings(s.outputs(), seed);
        fill_integers(bindings.inputs.at("label"), 0, shape.vocabulary - 1, seed);
        return bindings;
    }
};
TW_ON_EACH_DEVICE(LinearCrossEntropyKernels);

TEST_P(LinearCrossEntropyKernels, GiveLosses) {
    for (unsigned round = 0; round < 6; ++round) {
        const LinearCrossEntropyShape shape = random_shape();
        WarpgroupTiles tiles = linear_cross_entropy_tiles(shape);
        if (chance()) tiles = {.block_m = 128, .block_n = 64, .warpgroups = 2, .stages = 3, .stage_result = false};
        if (chance()) tiles.cluster = 2;
        const Schedule s = linear_cross_entropy_schedule(shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, random_labels(s, shape, round), near(64, 2e-2));  // sums may be rounded to a neighbour
    }
}

/// Whole numbers, so that sums are exact; the greatest of a row is far above the others.
TEST_P(LinearCrossEntropyKernels, GiveLossesOfLargeLogits) {
    const LinearCrossEntropyShape shape{.rows = 130, .depth = 16, .vocabulary = 200};
    const Schedule s = linear_cross_entropy_schedule(shape, linear_cross_entropy_tiles(shape), device_target());
    Bindings bindings = random_labels(s, shape, 7);
    fill_integers(bindings.inputs.at("x"), -8, 8, 8);
    fill_integers(bindings.inputs.at("w"), -8, 8, 9);
    expect_declared(s, bindings, near(64, 1e-4));  // losses near 0 are differences of numbers near 500
}

TEST_P(LinearCrossEntropyKernels, GiveGradients) {
    for (unsigned round = 0; round < 6; ++round) {
        const LinearCrossEntropyShape shape = random_shape();
        const bool parts = round % 3 == 2;
        const Schedule s = linear_cross_entropy_gradients_schedule(
            shape, parts, linear_gradient_tilings(shape, parts, device_target()), device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings bindings = random_labels(s, shape, round);
        fill_uniform(bindings.inputs.at("lse"), 5, 9, 5);  // such as rows of so many logits have
        if (parts) bindings.scalars["part"] = make_value(i32, int64_t{round / 3});
        expect_declared(s, bindings, near(64, 2e-3));
    }
}

}  // namespace
}  // namespace tw::schedules

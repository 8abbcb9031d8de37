// Sums over windows and over several axes in f32, as products of matrices.
#include "schedules/as_matrices.h"

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "tests/ops/on_each_device.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const Target& hopper = target("sm_90a");

class AsMatricesKernels : public OnEachDevice {
protected:
    void expect_product(const Tensor& output, uint64_t seed) {
        const Schedule s = choose_schedule({output}, device_target());
        Executable executable(build(s), device_);
        EXPECT_THAT(executable.program().explain(), HasSubstr("is a product of matrices")) << output.name();
        const Bindings data = random_bindings({output}, seed);
        const CheckResult result = check_output(output, data, run_on(executable, data)[0], {.samples = 512});
        EXPECT_TRUE(result.ok) << output.name() << ": " << result.text;
    }
};

TEST_P(AsMatricesKernels, AreConvolutionsAndTheirGradients) {
    const Tensor x = input("x", f32, {3, 17, 15, 12}), w = input("w", f32, {56, 3, 3, 12}), b = input("b", f32, {56});
    const Tensor y = convolve("y", x, w, b, {.padding = {1}}), g = input("g", f32, y.shape());
    expect_product(y, 1);
    const std::vector<Tensor> back = gradients(y, g, {x, w});
    for (uint64_t k = 0; k < 2; ++k) expect_product(back[k], 2 + k);
}
TEST_P(AsMatricesKernels, StepOverImages) {
    const Tensor x = input("x", f32, {3, 35, 33, 12}), w = input("w", f32, {56, 3, 3, 12});
    const Tensor y = convolve("y", x, w, {}, {.stride = {2}, .padding = {1}}), g = input("g", f32, y.shape());
    expect_product(y, 4);
    expect_product(gradients(y, g, {w})[0], 5);
}

/// Of a user's own: axes of both factors mixed, a condition on one, what is made of the sum.
TEST_P(AsMatricesKernels, AreContractionsOfAnyAxes) {
    const Tensor x = input("x", f32, {12, 20, 24, 6}), y = input("y", f32, {6, 13, 20, 11});
    const Axis p = reduce_axis("p", 20), q = reduce_axis("q", 6);
    const Tensor c = compute("c", {13, 12, 24, 11}, [&](Expr i, Expr a, Expr b, Expr j) {
        return tanh(sum(select(p + b > 3, x(a, p, b, q), 0.0) * y(q, i, p, j), {p, q}) * 0.1);
    });
    expect_product(c, 7);
}

TW_ON_EACH_DEVICE(AsMatricesKernels);

TEST(AsMatrices, LeavesWhatIsNone) {
    auto notes = [](const Tensor& output) { return as_matrices({output}, hopper).notes; };
    const Tensor x = input("x", f32, {8, 32, 32, 16}), w = input("w", f32, {32, 3, 3, 16});
    EXPECT_EQ(notes(convolve("y", x, w, {}, {.padding = {1}})).size(), 1U);
    const Tensor few = input("few", f32, {1, 8, 8, 16});
    EXPECT_THAT(notes(convolve("y", few, w, {}, {.padding = {1}})), IsEmpty()) << "small";
    const Tensor many = input("many", f32, {4096, 64, 64, 64}), of_many = input("of_many", f32, {64, 3, 3, 64});
    EXPECT_THAT(notes(convolve("y", many, of_many, {}, {.padding = {1}})), IsEmpty()) << "copies of 38 GB";
    EXPECT_THAT(notes(convolve("y", x, input("own", f32, {16, 3, 3, 1}), {}, {.padding = {1}, .groups = 16})),
                IsEmpty())
        << "both factors have the channel";
    const Tensor a = input("a", f32, {256, 512}), b = input("b", f32, {512, 256});
    const Axis k = reduce_axis("k", 512);
    EXPECT_THAT(notes(compute("c", {256, 256}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); })), IsEmpty())
        << "matrices as they are";
    const Tensor halves = input("halves", bf16, {8, 32, 32, 16}), of_halves = input("of_halves", bf16, {32, 3, 3, 16});
    EXPECT_THAT(notes(convolve("y", halves, of_halves, {}, {.padding = {1}})), IsEmpty()) << "tensor cores have them";
}

}  // namespace
}  // namespace tw::schedules

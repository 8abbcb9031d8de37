// What a training step computes between and around its products, at small random sizes with tails, against float64.
#include "schedules/fused_training.h"
#include "schedules/choose_in_place.h"

#include <cstring>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/check.h"
#include "ops/runner.h"
#include "tests/ops/random_cases.h"

namespace tw::schedules {
namespace {

class FusedTraining : public RandomCases {
protected:
    FusedTraining() : RandomCases(53) {}

    /// Extents that end within vectors, blocks and tiles.
    std::vector<int64_t> extents_of(size_t rank) {
        if (rank == 1) return {between(1, 3000)};
        if (rank == 2) return {between(2, 90), between(2, 400)};
        if (rank == 3) return {8 * between(3, 20), 8 * between(3, 20), 8 * between(3, 12)};
        return {between(20, 90), between(3, 30), between(2, 100), between(2, 20)};
    }
    /// Places within tables, and what is no variance below 0.
    static Bindings data_of(const Declared& declared, const std::vector<int64_t>& extents, unsigned seed) {
        Bindings bindings = random_bindings(declared.outputs, seed);
        for (auto& [name, array] : bindings.inputs) {
            if (name == "ids" || name == "label") fill_integers(array, 0, extents[1] - 1, seed);
            if (name == "v") fill_integers(array, 0, 3, seed);
        }
        return bindings;
    }
};
TW_ON_EACH_DEVICE(FusedTraining);

TEST_P(FusedTraining, AgreesWithFloat64) {
    for (const FusedKernel& kernel : fused_kernels())
        for (unsigned round = 0; round < 3; ++round) {
            const std::vector<int64_t> extents = extents_of(kernel.rank);
            const Declared declared = kernel.declare(extents);
            SCOPED_TRACE(fmt::format("{} {}", kernel.name, fmt::join(extents, "x")));
            Runner runner(choose_in_place(declared, device_target()), device_);
            const CheckResult result = runner.set(data_of(declared, extents, 17 + round)).check();
            EXPECT_TRUE(result.ok) << result.text;
        }
}

/// In float64.
std::vector<double> exact(const Tensor& output, const Bindings& bindings) {
    const HostArray array = interpret_plain({output}, bindings, Precision::Float64).at(0);
    std::vector<double> values(array.bytes.size() / sizeof(double));
    std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
    return values;
}
Tensor input_of(const Declared& declared, const std::string& name) {
    for (const auto& operation : operations_of(declared.outputs))
        if (operation->is_input() && operation->name == name) return {operation, 0};
    return {};
}
/// A matrix of adjoints, given in bf16 by that name.
Tensor adjoint(const std::string& name, const Tensor& of) {
    const Tensor given = input(name, bf16, {of.shape()[0], of.shape()[1]});
    return compute(name + "_wide", {of.shape()[0], of.shape()[1]},
                   [&](Expr i, Expr j) { return cast(f32, given(i, j)); });
}
void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t k = 0; k < got.size(); ++k) EXPECT_NEAR(got[k], expected[k], 1e-5 * (1 + std::abs(expected[k])));
}
HostArray as_f32(const std::vector<double>& values) {
    HostArray array = host_array(f32, {static_cast<int64_t>(values.size())});
    for (size_t k = 0; k < values.size(); ++k) array.set({static_cast<int64_t>(k)}, make_value(Type::F64, values[k]));
    return array;
}

/// Against what gradients() derives from the forward pass.
TEST(FusedTrainingFormulas, OfALayerNormAreItsGradients) {
    const Declared forward = residual_layernorm(5, 23), backward = layernorm_backward(5, 23);
    const Tensor x = input_of(forward, "x"), n = forward.outputs[1];
    const std::vector<Tensor> derived =
        gradients(n, adjoint("dn", n), {x, input_of(forward, "gain"), input_of(forward, "bias")});
    std::vector<Tensor> all = derived;
    all.insert(all.end(), forward.outputs.begin(), forward.outputs.end());
    Bindings given = random_bindings(all, 3), saved = random_bindings(backward.outputs, 4);
    fill_integers(given.inputs.at("y"), 0, 0, 1);
    fill_integers(saved.inputs.at("dr"), 2, 2, 1);
    for (const char* name : {"dn", "gain"}) saved.inputs[name] = given.inputs.at(name);
    saved.inputs["r"] = given.inputs.at("x");
    saved.inputs["mean"] = as_f32(exact(forward.outputs[2], given));
    saved.inputs["scale"] = as_f32(exact(forward.outputs[3], given));
    std::vector<double> dx = exact(derived[0], given);
    for (double& each : dx) each += 2;
    expect_near(exact(backward.outputs[0], saved), dx);
    for (size_t k : {1, 2}) expect_near(exact(backward.outputs[k], saved), exact(derived[k], given));
}

TEST(FusedTrainingFormulas, OfGeluAndDropoutAreItsGradients) {
    const Declared forward = gelu_dropout(7, 13), backward = gelu_dropout_backward(7, 13);
    const Tensor y = forward.outputs[0];
    const std::vector<Tensor> derived =
        gradients(y, adjoint("dy", y), {input_of(forward, "x"), input_of(forward, "bias")});
    const Bindings given = random_bindings(derived, 5);
    for (size_t k : {0, 1}) expect_near(exact(backward.outputs[k], given), exact(derived[k], given));
}

TEST(FusedTrainingFormulas, OfCrossEntropyAreItsGradients) {
    const Declared both = cross_entropy_both(6, 11);
    const Tensor share = compute("share", {6}, [](Expr) { return constant(f32, 1.0 / 6); });
    const Tensor derived = gradients(both.outputs[1], share, {input_of(both, "logits")})[0];
    Bindings given = random_bindings(both.outputs, 6);
    fill_integers(given.inputs.at("label"), 0, 10, 7);
    expect_near(exact(both.outputs[0], given), exact(derived, given));
}

TEST(FusedTrainingNames, GiveExtents) {
    EXPECT_TRUE(fused_entry("fused_layernorm_backward_32768x768"));
    EXPECT_FALSE(fused_entry("fused_layernorm_backward_32768"));
    EXPECT_FALSE(fused_entry("fused_layernorm_backward_0x768"));
    EXPECT_FALSE(fused_entry("fused_nothing_3x5"));
    EXPECT_FALSE(fused_entry("fused_adamw_3_bf16"));
    const double elements = 32768.0 * 768;
    EXPECT_EQ(fused_entry("fused_layernorm_backward_32768x768")->bytes,
              4 * 2 * elements + 2 * 4 * 32768.0 + (2 + 4 + 4) * 768.0);
}

}  // namespace
}  // namespace tw::schedules

// Gradients of attention's biases: one of each, by names of their own, whatever is put together in one graph.
#include <gmock/gmock.h>

#include <set>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "schedules/attention_backward.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

const AttentionShape shape{.batch = 1, .heads = 2, .rows = 6, .keys = 8, .depth = 8, .width = 8, .type = f16};
const GradientPasses of_biases{.kept = true, .of_pairs = true};
const Tensor g = input("g", f16, {1, 6, 2, 8});

/// Names within one schedule differ, and values are those of the formula.
void expect_gradients(const std::vector<Tensor>& made, const std::vector<Tensor>& wanted) {
    std::set<std::string> names;
    for (const auto& operation : operations_of(made))
        EXPECT_TRUE(names.insert(operation->name).second) << operation->name;
    EXPECT_NO_THROW(Schedule(made, tw::target("sm_90a")));
    const Bindings bindings = random_bindings(made, 14);
    const std::vector<HostArray> got = interpret_plain(made, bindings, Precision::Float64),
                                 expected = interpret_plain(wanted, bindings, Precision::Float64);
    for (size_t k = 0; k < got.size(); ++k) {
        auto differs = difference(made[k].name(), got[k], expected[k], near(0, 2e-2));
        EXPECT_FALSE(differs) << *differs;
    }
}

TEST(GradientsOfBiases, AreCalledByTheirNames) {
    for (const Type type : {f32, f16}) {
        const Tensor bias = input("bias", type, {1, 2, 6, 8}), other = input("other", type, {1, 1, 6, 8});
        const Attention a = declare_attention(shape, in_turn({additive_bias(bias), additive_bias(other)}));
        const std::vector<Tensor> inputs{a.q, bias, other};
        const std::vector<Tensor> made = gradients(with_attention_gradients(a, shape, of_biases), g, inputs);
        EXPECT_EQ(made[1].name(), "d_bias");
        EXPECT_EQ(made[2].name(), "d_other");
        EXPECT_EQ(made[1].type(), type);
        expect_gradients(made, gradients(a.o, g, inputs));
    }
}

TEST(GradientsOfBiases, OfOneThatIsReadTwice) {
    for (const Type type : {f32, f16}) {
        const Tensor bias = input("bias", type, {1, 2, 6, 8});
        const Attention a = declare_attention(shape, in_turn({additive_bias(bias), soft_cap(3), additive_bias(bias)}));
        EXPECT_EQ(a.of_pairs.size(), 1U);
        const std::vector<Tensor> made = gradients(with_attention_gradients(a, shape, of_biases), g, {bias});
        EXPECT_EQ(made[0].name(), "d_bias");
        expect_gradients(made, gradients(a.o, g, {bias}));
    }
}

TEST(GradientsOfBiases, OfOneThatTwoAttentionsRead) {
    for (const Type type : {f32, f16}) {
        const Tensor bias = input("bias", type, {1, 2, 6, 8}), sinks = input("sinks", f32, {2});
        const Tensor k = input("k_of_second", f16, {1, 8, 2, 8}), v = input("v_of_second", f16, {1, 8, 2, 8});
        auto second_of = [&](const Tensor& q, const char* suffix) {
            const AttentionOperands operands{.q = q, .k = k, .v = v, .suffix = suffix};
            return declare_attention(shape, additive_bias(bias), false, {}, sinks, operands);
        };
        const Attention first = declare_attention(shape, additive_bias(bias), false, {}, sinks);
        const Attention second = second_of(with_attention_gradients(first, shape, of_biases), "_2");
        const Attention plain = second_of(first.o, "_3");
        const std::vector<Tensor> inputs{first.q, bias, sinks};
        const std::vector<Tensor> made = gradients(with_attention_gradients(second, shape, of_biases), g, inputs);
        EXPECT_EQ(made[1].name(), "d_bias_3");  // the sum of d_bias and d_bias_2
        EXPECT_EQ(made[2].name(), "d_sinks_3");
        expect_gradients(made, gradients(plain.o, g, inputs));
    }
}

/// By the rules of the declaration, whoever asks; of what a rule reads, none without being told.
TEST(GradientsOfBiases, AreNoZerosWithoutAWord) {
    const Tensor bias = input("bias", f32, {1, 2, 6, 8});
    const Attention a = declare_attention(shape, additive_bias(bias));
    EXPECT_ERROR(gradients(with_attention_gradients(a, shape), g, {bias}),
                 "gradients: 'o' is made of 'bias', of which its own gradient, with_gradient at "
                 "attention_gradient_names_test.cpp:");
    EXPECT_NO_THROW(gradients(with_attention_gradients(a, shape), g, {a.q}));
}

}  // namespace
}  // namespace tw::schedules

// Gradients that generated kernels compute, against finite differences of the declaration in float64: of every
// operation of the catalog that has a derivative, of the catalog's own gradient kernels, and of the training layer.
#include <regex>
#include <set>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "ops/autograd.h"
#include "ops/layers.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "tests/ops/finite_differences.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

std::vector<Tensor> float_inputs_of(const Tensor& output) {
    std::vector<Tensor> inputs;
    for (const auto& operation : operations_of({output}))
        if (operation->is_input() && is_float(operation->outputs[0].type)) inputs.emplace_back(operation, 0);
    return inputs;
}

Shape shape_of(const Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }

Tensor adjoint_of(const Tensor& output) { return input("adjoint", f32, shape_of(output)); }

/// A tensor that a kernel writes; a gradient may be the adjoint itself.
Tensor computed(const Tensor& gradient, const std::string& name) {
    if (!gradient.operation()->is_input()) return gradient;
    return compute(name, shape_of(gradient), [&](const std::vector<Expr>& at) {
        return gradient.read({at.begin(), at.end()});
    });
}

Tensor declared(const std::string& kernel) {
    return schedules::find_kernel(kernel)->make(target("sm_90a")).outputs()[0];
}

class CatalogGradients : public testing::TestWithParam<const char*> {};

TEST_P(CatalogGradients, OfKernelsAgreeWithFiniteDifferences) {
    Tensor output = declared(GetParam()), adjoint = adjoint_of(output);
    std::vector<Tensor> inputs = float_inputs_of(output), derived = gradients(output, adjoint, inputs);
    for (size_t i = 0; i < derived.size(); ++i) derived[i] = computed(derived[i], "own_" + inputs[i].name());
    std::vector<Tensor> all = derived;
    all.push_back(output);
    all.push_back(adjoint);
    Bindings bindings = coarse_bindings(all, 31);

    Executable executable(build(schedules::choose_schedule(derived, target("sm_90a"))), open_device("emulated"));
    std::vector<HostArray> got = run_on(executable, bindings);
    FiniteDifferences differences(output, bindings);
    for (size_t i = 0; i < inputs.size(); ++i) differences.expect_gradient(inputs[i].name(), got[i]);
    differences.expect_few_kinks();
    if (HasFailure()) fmt::print("{}", executable.program().cuda());
}

INSTANTIATE_TEST_SUITE_P(Catalog, CatalogGradients,
                         testing::Values("product_11x7x9", "product_11x7x9_ta_tb_ab", "elementwise_37x53",
                                         "transpose_9x13_f32", "row_sum_7x37_f32", "softmax_5x37_f32",
                                         "layernorm_5x33_f32", "rmsnorm_5x33_f32", "column_sum_9x37_f32",
                                         "full_sum_70_f32", "dot_33_f32", "gelu_bias_7x37_f32", "embedding_13x8x9_f32",
                                         "embedding_gradient_13x8x9_f32", "dropout_7x37_f32"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CatalogGradients, EachOperationIsListed) {
    const std::set<std::string> with = {"product",    "elementwise", "transpose",          "row_sum", "softmax",
                                        "layernorm",  "rmsnorm",     "full_sum",           "dot",     "gelu_bias",
                                        "column_sum", "embedding",   "embedding_gradient", "dropout"};
    const std::set<std::string> without = {
        "argmax", "moments", "similarity", "standardise", "cross_entropy",  // reducers of their own
        // derivatives themselves, of what the forward pass saves
        "softmax_gradient", "layernorm_gradient", "rmsnorm_gradient", "cross_entropy_gradient",
        // other schedules of the operations above
        "split_k_product", "async_product", "dot_atomic", "embedding_gradient_atomic",
        "adamw",  // a step, not a function
        // steps of narrow types are too coarse; gelu_bias and product are like them
        "gelu_bf16", "gemm_bf16", "gemm_f16", "gemm_tf32", "gemm_i8", "gemm_e4m3"};
    for (const auto& entry : schedules::catalog()) {
        std::string operation = std::regex_replace(entry.name, std::regex("_[0-9].*"), "");
        EXPECT_NE(with.count(operation), without.count(operation)) << entry.name;
    }
    for (const char* name : {"argmax_3x40000_f32", "moments_3x5_f32", "similarity_3x5_f32"}) {
        Tensor output = declared(name);
        Tensor adjoint = adjoint_of(output);
        EXPECT_ERROR(gradients(output, adjoint, float_inputs_of(output)), "which has no derivative");
    }
}

TEST(CatalogGradients, OfTheTableByItsOwnKernel) {
    Tensor output = declared("embedding_13x8x9_f32");
    Bindings bindings = coarse_bindings({output, adjoint_of(output)}, 5);
    bindings.inputs["y_gradient"] = bindings.inputs["adjoint"];
    Executable executable(build(schedules::find_kernel("embedding_gradient_13x8x9_f32")->make(target("sm_90a"))),
                          open_device("emulated"));
    FiniteDifferences differences(output, bindings);
    differences.expect_gradient("table", run_on(executable, bindings)[0]);
    differences.expect_few_kinks();
}

struct RowGradient {
    std::string forward, gradient;             // kernels
    std::map<std::string, std::string> saved;  // inputs of the gradient, and the tensors that they hold
};

TEST(CatalogGradients, OfRowsByTheirOwnKernels) {
    for (const RowGradient& rows :
         {RowGradient{"softmax_5x37_f32", "softmax_gradient_5x37_f32", {{"x", "y"}}},
          {"layernorm_5x33_f32", "layernorm_gradient_5x33_f32", {{"mean", "mean"}, {"scale", "scale"}}},
          {"rmsnorm_5x33_f32", "rmsnorm_gradient_5x33_f32", {{"scale", "scale"}}},
          {"cross_entropy_5x37_f32", "cross_entropy_gradient_5x37_f32", {{"loss", "loss"}}}}) {
        SCOPED_TRACE(rows.gradient);
        Tensor output = declared(rows.forward);
        Bindings bindings = coarse_bindings({output, adjoint_of(output)}, 5), given = bindings;
        for (const auto& operation : operations_of({output}))
            for (const auto& [name, held] : rows.saved)
                if (Tensor(operation, 0).name() == held)
                    given.inputs[name] = interpret_plain({Tensor(operation, 0)}, bindings)[0];
        given.inputs["dy"] = given.inputs["dloss"] = bindings.inputs["adjoint"];
        Executable executable(build(schedules::find_kernel(rows.gradient)->make(target("sm_90a"))),
                              open_device("emulated"));
        FiniteDifferences differences(output, bindings);
        differences.expect_gradient("x", run_on(executable, given)[0]);
        differences.expect_few_kinks();
    }
}

class LayerGradients : public OnEachDevice {
protected:
    void SetUp() override {
        OnEachDevice::SetUp();
        if (device_) backend_ = std::make_shared<nn::Backend>(device_);
    }

    /// Through the tape, of `loss` on tensors that hold the inputs of the scalar `declared`, against its differences.
    void expect_gradients(const Tensor& declared, const std::vector<Tensor>& inputs,
                          const std::function<nn::Tensor(const std::vector<nn::Tensor>&)>& loss) {
        Bindings bindings = coarse_bindings({declared}, 11);
        std::vector<nn::Tensor> tensors;
        for (const Tensor& each : inputs) {
            tensors.emplace_back(backend_, bindings.inputs.at(each.name()), each.name());
            if (is_float(each.type())) tensors.back().set_requires_grad();
        }
        nn::Tensor value = loss(tensors);
        nn::backward(value);
        HostArray exact = interpret_plain({declared}, bindings, Precision::Float64)[0];
        EXPECT_NEAR(value.to_host().at({}).real, exact.at({}).real, 1e-5);
        FiniteDifferences differences(declared, bindings);
        for (const nn::Tensor& tensor : tensors)
            if (tensor.requires_grad()) differences.expect_gradient(tensor.name(), tensor.grad().to_host());
        differences.expect_few_kinks();
    }

    /// An operator of the training layer with this result, which has to be a scalar.
    void expect_gradients(const std::vector<Tensor>& inputs, const nn::Expression& expression) {
        expect_gradients(expression(inputs), inputs, nn::Operator("own", expression));
    }

    std::shared_ptr<nn::Backend> backend_;
};
TW_ON_EACH_DEVICE(LayerGradients);

/// sum_{i, j} y[i, j] * weight[i, j]
Tensor weighted(const Tensor& y, const Tensor& weight) {
    Axis i = reduce_axis("wi", y.shape()[0]), j = reduce_axis("wj", y.shape()[1]);
    return compute("loss", {}, [&] { return sum(y(i, j) * weight(i, j), {i, j}); });
}

/// cross_entropy(linear(relu(linear(x)))), declared once more by hand and without the tricks of the layers.
TEST_P(LayerGradients, OfANetwork) {
    constexpr int64_t Batch = 6, In = 5, Hidden = 9, Classes = 8;
    Tensor x = input("x", f32, {Batch, In}), labels = input("labels", i32, {Batch});
    Tensor w1 = input("w1", f32, {Hidden, In}), b1 = input("b1", f32, {Hidden});
    Tensor w2 = input("w2", f32, {Classes, Hidden}), b2 = input("b2", f32, {Classes});
    Axis k = reduce_axis("k", In), h = reduce_axis("h", Hidden), c = reduce_axis("c", Classes);
    Axis b = reduce_axis("b", Batch);
    Tensor hidden = compute("hidden", {Batch, Hidden},
                            [&](Expr i, Expr j) { return max(sum(x(i, k) * w1(j, k), k) + b1(j), 0.0f); });
    Tensor logits =
        compute("logits", {Batch, Classes}, [&](Expr i, Expr j) { return sum(hidden(i, h) * w2(j, h), h) + b2(j); });
    Tensor total = compute("total", {Batch}, [&](Expr i) { return log(sum(exp(logits(i, c)), c)); });
    Tensor loss = compute("loss", {}, [&] { return sum(total(b) - logits(b, labels(b)), b) / float(Batch); });
    expect_gradients(loss, {x, w1, b1, w2, b2, labels}, [](const std::vector<nn::Tensor>& in) {
        return nn::cross_entropy(nn::linear(nn::relu(nn::linear(in[0], in[1], in[2])), in[3], in[4]), in[5]);
    });
}

TEST_P(LayerGradients, OfElementwiseOperators) {
    Tensor x = input("x0", f32, {5, 7}), weight = input("x1", f32, {5, 7});
    for (auto f : std::vector<Expr (*)(const Expr&)>{
             [](const Expr& v) { return relu(v); }, [](const Expr& v) { return gelu(v) + gelu_tanh(v); },
             [](const Expr& v) { return silu(v); }, [](const Expr& v) { return sigmoid(v); },
             [](const Expr& v) { return tanh(v); }, [](const Expr& v) { return exp(v) * abs(v); },
             [](const Expr& v) { return log(v + 2) / sqrt(v + 3); }})
        expect_gradients({x, weight}, [f](const std::vector<Tensor>& in) {
            Tensor y = compute("y", {5, 7}, [&](Expr i, Expr j) { return f(in[0](i, j)); });
            return weighted(y, in[1]);
        });
}

/// Softmax of scores over which each query attends: two products around it, and the causal mask.
TEST_P(LayerGradients, OfAttention) {
    constexpr int64_t Tokens = 7, Width = 5;
    Tensor q = input("x0", f32, {Tokens, Width}), keys = input("x1", f32, {Tokens, Width});
    Tensor v = input("x2", f32, {Tokens, Width}), weight = input("x3", f32, {Tokens, Width});
    expect_gradients({q, keys, v, weight}, [](const std::vector<Tensor>& in) {
        Axis d = reduce_axis("d", Width), t = reduce_axis("t", Tokens);
        Tensor score = compute("score", {Tokens, Tokens}, [&](Expr i, Expr j) {
            return select(j <= i, sum(in[0](i, d) * in[1](j, d), d) * 0.447f, -1e30f);
        });
        Tensor most = stop_gradient(compute("most", {Tokens}, [&](Expr i) { return reduce_max(score(i, t), t); }));
        Tensor e = compute("e", {Tokens, Tokens}, [&](Expr i, Expr j) { return exp(score(i, j) - most(i)); });
        Tensor total = compute("total", {Tokens}, [&](Expr i) { return sum(e(i, t), t); });
        Tensor y =
            compute("y", {Tokens, Width}, [&](Expr i, Expr j) { return sum(e(i, t) / total(i) * in[2](t, j), t); });
        return weighted(y, in[3]);
    });
}

/// One input used several times, transposed, gathered and summed over windows.
TEST_P(LayerGradients, OfReadsInEveryForm) {
    Tensor x = input("x0", f32, {9, 9}), weight = input("x1", f32, {9, 9}), ids = input("x2", i32, {9});
    expect_gradients({x, weight, ids}, [](const std::vector<Tensor>& in) {
        Axis r = reduce_axis("r", 3);
        Tensor y = compute("y", {9, 9}, [&](Expr i, Expr j) {
            return in[0](i, j) * in[0](j, i) +
                   in[0](cast(i64, in[2](i)), j) * sum(padded(in[0], 0.0f)(i, j + r - 1), r);
        });
        return weighted(y, in[1]);
    });
}

}  // namespace
}  // namespace tw

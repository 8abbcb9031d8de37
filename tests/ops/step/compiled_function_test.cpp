// Functions of tensors: a plan for each list of types and shapes, shapes rounded up to buckets.
#include "ops/step/compiled_function.h"

#include <cmath>
#include <random>

#include <gmock/gmock.h>

#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/operator.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/reductions.h"
#include "ops/views.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

using testing::ElementsAre;

class CompiledFunctions : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    Tensor random_tensor(const std::vector<int64_t>& shape, Type type = f32) {
        HostArray host = host_array(type, shape);
        if (is_float(type))
            fill_uniform(host, -1, 1, random_());
        else
            fill_integers(host, 0, 4, static_cast<unsigned>(random_()));
        return {backend_, host, "x"};
    }
    std::shared_ptr<Backend> backend_;
    std::mt19937_64 random_{std::random_device{}()};
};
TW_ON_EACH_DEVICE(CompiledFunctions);

/// Parameters are trained by calls of several shapes as by steps of one: equal to the same network called eagerly.
TEST_P(CompiledFunctions, TrainWithAnyShape) {
    struct Network {
        explicit Network(const std::shared_ptr<Backend>& backend)
            : layer(backend, 6, 5, 3), sgd(layer.parameters(), 0.3, 0.9) {}
        Linear layer;
        Sgd sgd;
        Tensor step(const std::vector<Tensor>& in) {
            const Tensor loss = cross_entropy(layer(in[0]), in[1]);
            backward(loss);
            sgd.step();
            return loss;
        }
    } compiled(backend_), called(backend_);
    std::vector<std::string> why;
    CompiledFunction train(backend_, [&](const std::vector<Tensor>& in) { return std::vector{compiled.step(in)}; },
                           {.on_plan = [&](const std::string& text) { why.push_back(text); }});
    for (const int64_t rows : {7, 12, 7, 12, 7}) {
        const Tensor x = random_tensor({rows, 6}), labels = random_tensor({rows}, i32);
        const double loss = train({x, labels})[0].to_host().at({}).real;
        EXPECT_NEAR(loss, called.step({x, labels}).to_host().at({}).real, 1e-5);
        EXPECT_EQ(train.step().plan().values.empty(), false);
    }
    EXPECT_EQ(train.num_plans(), 2u);
    EXPECT_THAT(why,
                ElementsAre("first call", "dimension 0 of input 0 is 12, not 7; dimension 0 of input 1 is 12, not 7"));
    const HostArray got = compiled.layer.parameters()[0].to_host(), expected = called.layer.parameters()[0].to_host();
    std::vector<int64_t> at{0, 0};
    do EXPECT_NEAR(got.at(at).real, expected.at(at).real, 1e-5);
    while (advance(at, got.shape));
}

/// Behind the elements of a call stands what the bucket says, also where an earlier call had elements.
TEST_P(CompiledFunctions, RoundUpToBuckets) {
    const Operator twice("twice", [](const std::vector<tw::Tensor>& in) {
        return compute("twice", {in[0].shape()[0], in[0].shape()[1]},
                       [&](Expr i, Expr j) { return 2.0 * in[0](i, j); });
    });
    CompiledFunction run(backend_, [&](const std::vector<Tensor>& in) { return std::vector{twice({in[0]})}; },
                         {.buckets = {{.input = 0, .dimension = 1, .sizes = {4, 8, 9}, .fill = -0.5}}});
    for (const int64_t columns : {8, 3, 6, 9, 4, 1}) {
        const Tensor x = random_tensor({5, columns});
        const HostArray got = run({x})[0].to_host(), given = x.to_host();
        ASSERT_EQ(got.shape, (std::vector<int64_t>{5, columns <= 4 ? 4 : columns <= 8 ? 8 : 9}));
        std::vector<int64_t> at{0, 0};
        do ASSERT_EQ(got.at(at).real, at[1] < columns ? 2 * given.at(at).real : -1) << columns << " at " << at[1];
        while (advance(at, got.shape));
    }
    EXPECT_EQ(run.num_plans(), 3u);
}

/// Those that require gradients have them in the function, by either way; a tensor given twice has that of both.
TEST_P(CompiledFunctions, InputsHaveGradients) {
    std::vector<std::string> why;
    CompiledFunction slopes(backend_,
                            [](const std::vector<Tensor>& in) {
                                const Tensor loss = sum(in[0] * in[0] * in[1]);
                                backward(loss, {.retain = true});
                                return std::vector{gradients(loss, {in[0]})[0] * 1.0, in[0].grad() * 1.0};
                            },
                            {.on_plan = [&](const std::string& text) { why.push_back(text); }});
    for (int round = 0; round < 2; ++round) {
        const Tensor x = random_tensor({4, 5}), y = random_tensor({4, 5});
        x.set_requires_grad();
        const HostArray a = x.to_host(), b = y.to_host();
        const auto expect = [&](const std::vector<Tensor>& inputs, const auto& slope) {
            for (const Tensor& made : slopes(inputs)) {
                const HostArray got = made.to_host();
                std::vector<int64_t> at{0, 0};
                do EXPECT_NEAR(got.at(at).real, slope(a.at(at).real, b.at(at).real), 1e-5);
                while (advance(at, got.shape));
            }
        };
        expect({x, y}, [](double u, double v) { return 2 * u * v; });
        expect({x, x}, [](double u, double) { return 3 * u * u; });
        EXPECT_FALSE(x.grad().defined());
        EXPECT_ERROR(slopes({y, x}), "gradients: ");  // of y: it requires none
    }
    EXPECT_THAT(why, ElementsAre("first call", "input 1 requires a gradient; input 1 is the same as input 0",
                                 "input 0 requires no gradient; input 1 requires a gradient",
                                 "input 0 requires no gradient; input 1 requires a gradient"));
}

/// Views of one memory are inputs by themselves, with gradients of their own. Parameters that a step overwrites have
/// memory of their own.
TEST_P(CompiledFunctions, ViewsOfOneMemory) {
    const Tensor x = random_tensor({8, 4});
    const Tensor top = slice(x, 0, 0, 5), end = slice(x, 0, 3, 8);
    ASSERT_TRUE(top.shares_memory(end));
    for (const Tensor& each : {top, end}) each.set_requires_grad();
    const auto slopes = [](const std::vector<Tensor>& in) {
        const Tensor loss = sum(in[0] * in[0] * in[1] + in[1]);
        backward(loss);
        return std::vector{loss, in[0].grad() * 1.0, in[1].grad() * 1.0};
    };
    CompiledFunction compiled(backend_, slopes);
    const auto expect_as_called = [&](const std::vector<Tensor>& inputs) {
        const std::vector<Tensor> got = compiled(inputs), called = slopes(inputs);
        for (size_t k = 0; k < called.size(); ++k) {
            const std::vector<float> expected = called[k].data().read<float>(), found = got[k].data().read<float>();
            for (size_t e = 0; e < expected.size(); ++e) EXPECT_NEAR(found[e], expected[e], 1e-5) << k << " " << e;
        }
    };
    expect_as_called({top, end});
    x.copy_from_host(random_tensor({8, 4}).to_host());
    expect_as_called({top, end});
    expect_as_called({end, top});
    EXPECT_EQ(compiled.num_plans(), 1U);

    // By calls, and recorded, one update comes behind the other.
    const HostArray before = x.to_host();
    Sgd sgd({top, end}, 0.5);
    const auto step = [&] {
        backward(sum(top * end));
        sgd.step();
        return std::vector{sum(top)};
    };
    step();
    const HostArray moved = x.to_host();
    const auto at = [&](int64_t row) { return before.at({row, 1}).real; };
    EXPECT_NEAR(moved.at({4, 1}).real, at(4) - 0.5 * at(7) - 0.5 * at(1), 1e-6);  // row 4 of top, row 1 of end
    x.copy_from_host(before);
    backend_->record([&] { step(); }).run();
    EXPECT_EQ(x.to_host().bytes, moved.bytes);
    EXPECT_ERROR(
        compile(backend_, step),
        "'slice' [5, 4] is overwritten by the step that is captured, and lies in memory that 'slice' [5, 4] is "
        "in, which it uses, too; make views inside of the function, or give it a clone()");
}

TEST_P(CompiledFunctions, Refused) {
    const CompiledFunction::Function same = [](const std::vector<Tensor>& in) {
        return std::vector{add(in[0], in[0])};
    };
    const auto with = [&](const std::vector<ShapeBuckets>& buckets) {
        return CompiledFunction(backend_, same, {.buckets = buckets});
    };
    EXPECT_ERROR(with({{.sizes = {8, 4}}}),
                 "the buckets of dimension 0 of input 0 are [8, 4]; give positive sizes, ascending");
    EXPECT_ERROR(with({{.sizes = {}}}), "give positive sizes, ascending");
    EXPECT_ERROR(with({})({}), "no inputs; a function that takes none is compiled by nn::compile()");
    EXPECT_ERROR(with({})({Tensor()}), "input 0 is an undefined tensor");
    EXPECT_ERROR(with({{.input = 1, .sizes = {4}}})({random_tensor({4})}),
                 "buckets for dimension 0 of input 1, which is not there");
    EXPECT_ERROR(with({{.sizes = {4, 8}}})({random_tensor({9})}), "dimension 0 of input 0 is 9, the largest bucket 8");
    EXPECT_ERROR((void)with({}).step(), "it was not called yet");
    CompiledFunction loss(backend_, [](const std::vector<Tensor>& in) { return std::vector{mean(in[0])}; });
    const Tensor x = random_tensor({4});
    x.set_requires_grad();
    EXPECT_ERROR(
        backward(loss({x})[0]),
        "backward: 'mean' is what a compiled step has made, which leaves no tape; call backward in the function");
    const auto filled = [&](Type type, double fill) {
        const Tensor x = random_tensor({3}, type);
        return with({{.sizes = {4}, .fill = fill}})({x})[0].to_host().at({3});
    };
    const auto is_none = [](double fill, const char* type) {
        return fmt::format(
            "what fills dimension 0 of input 0 up is {}, which is no {}; give a number that the type has", fill, type);
    };
    for (const double fill : {0.5, 2147483648.0, double(INFINITY), double(NAN)})
        EXPECT_ERROR(filled(i32, fill), is_none(fill, "i32"));
    EXPECT_EQ(filled(i32, -3).integer, -6);
    EXPECT_ERROR(filled(f16, 1e5), is_none(1e5, "f16"));
    EXPECT_EQ(filled(f16, INFINITY).real, INFINITY);
    EXPECT_EQ(filled(f32, -1e30).real, static_cast<double>(-2e30F));
    EXPECT_ERROR(filled(f32, 1e39), is_none(1e39, "f32"));
    Tensor hooked = random_tensor({4});
    hooked.set_requires_grad().on_gradient([](const Tensor& gradient) { return gradient; });
    EXPECT_ERROR(with({})({hooked}), "input 0, 'x', has hooks of on_gradient(), which are not called in the function");
    auto other = std::make_shared<Backend>(device_);
    const Tensor foreign(other, f32, {4}, "foreign");
    EXPECT_ERROR(with({})({foreign}), "input 0 is of another backend");
}

}  // namespace
}  // namespace tw::nn

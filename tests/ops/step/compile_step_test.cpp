// Steps of layers, gradients and optimizers, compiled as one graph.
#include "ops/step/compile_step.h"

#include <random>

#include <gmock/gmock.h>

#include "ops/layers.h"
#include "ops/normalization.h"
#include "ops/operator.h"
#include "ops/optimizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

using testing::IsEmpty;

/// A network of two layers with its data and its optimizer: equal ones of equal seeds.
struct Network {
    std::shared_ptr<Backend> backend;
    Tensor x, labels;
    Linear hidden, output;
    Sgd sgd;

    Network(const std::shared_ptr<Device>& device, uint64_t seed)
        : backend(std::make_shared<Backend>(device)),
          x(backend, f32, {12, 10}, "x"),
          labels(backend, i32, {12}, "labels"),
          hidden(backend, 10, 16, seed),
          output(backend, 16, 5, seed + 1),
          sgd(all(), 0.5, 0.9) {
        new_data(seed);
    }
    std::vector<Tensor> all() const {
        std::vector<Tensor> parameters = hidden.parameters();
        for (const Tensor& each : output.parameters()) parameters.push_back(each);
        return parameters;
    }
    void new_data(uint64_t seed) const {
        HostArray rows = host_array(f32, {12, 10}), classes = host_array(i32, {12});
        fill_uniform(rows, -1, 1, seed);
        fill_integers(classes, 0, 4, seed);
        x.copy_from_host(rows);
        labels.copy_from_host(classes);
    }
    Tensor step() {
        const Tensor loss = cross_entropy(output(relu(hidden(x))), labels);
        backward(loss);
        sgd.step();
        return loss;
    }
};

double number(const Tensor& tensor) { return tensor.to_host().at({}).real; }

void expect_equal(const Tensor& got, const Tensor& expected, double absolute = 1e-5) {
    const HostArray a = got.to_host(), b = expected.to_host();
    ASSERT_EQ(a.shape, b.shape);
    std::vector<int64_t> at(a.shape.size());
    do ASSERT_NEAR(a.at(at).real, b.at(at).real, absolute) << got.name();
    while (advance(at, a.shape));
}

class CompiledSteps : public OnDevice {};
/// Rows of a table and of places, and the sums of adjoints that each of them gets.
TEST_P(CompiledSteps, HaveEmbeddings) {
    const auto backend = std::make_shared<Backend>(device_);
    const int64_t words = 7, width = 6, length = 5, rows = 15;
    HostArray table = host_array(f32, {words, width}), places = host_array(f32, {length, width}),
              ids = host_array(i32, {rows}), goal = host_array(f32, {rows, width});
    fill_uniform(table, -1, 1, 1);
    fill_uniform(places, -1, 1, 2);
    fill_integers(ids, 0, static_cast<int>(words) - 2, 3);  // the last one occurs nowhere
    fill_uniform(goal, -1, 1, 4);
    HostArray of_table = host_array(f32, {words, width}), of_places = host_array(f32, {length, width});
    for (int64_t n = 0; n < rows; ++n)
        for (int64_t j = 0; j < width; ++j) {
            const auto word = ids.at({n}).integer;
            const double y = table.at({word, j}).real + places.at({n % length, j}).real;
            const double dy = 2 * (y - goal.at({n, j}).real) / static_cast<double>(rows * width);
            of_table.set({word, j}, make_value(f32, of_table.at({word, j}).real + dy));
            of_places.set({n % length, j}, make_value(f32, of_places.at({n % length, j}).real + dy));
        }
    const Tensor t(backend, table, "table"), p(backend, places, "places"), i(backend, ids, "ids"),
        g(backend, goal, "goal");
    t.set_requires_grad();
    p.set_requires_grad();
    auto step = [&] {
        backward(mse_loss(embedding(t, i, p), g));
        return std::vector{t.grad(), p.grad()};
    };
    const CompiledStep compiled = compile(backend, step);
    compiled.run();
    const std::vector<Tensor> called = step();
    for (const auto& [got, expected] : {std::pair(compiled.results()[0], of_table),
                                        {compiled.results()[1], of_places},
                                        {called[0], of_table},
                                        {called[1], of_places}})
        expect_equal(got, Tensor(backend, expected), 1e-6);
    EXPECT_ERROR(embedding(t, p, i),
                 "embedding: the table is [7, 6], ids are f32 [5, 6], places [15]; give [words, width], ");
}

TW_ON_EACH_DEVICE(CompiledSteps);

/// A step that only updates: what it makes of the parameters is all that is wanted.
TEST_P(CompiledSteps, MayReturnNothing) {
    Network compiled(device_, 3), called(device_, 3);
    const CompiledStep step = compile(compiled.backend, [&] {
        compiled.step();
        return std::vector<Tensor>{};
    });
    EXPECT_TRUE(step.results().empty());
    for (int round = 0; round < 3; ++round) {
        step.run();
        called.step();
    }
    for (size_t k = 0; k < called.all().size(); ++k) expect_equal(compiled.all()[k], called.all()[k]);
}

/// Losses and parameters are those of calls one by one; data and rates that change in between count.
TEST_P(CompiledSteps, TrainAsCallsDo) {
    const uint64_t seed = std::random_device{}() % 1000;
    Network compiled(device_, seed), called(device_, seed);
    const CompiledStep step = compile(compiled.backend, [&] { return std::vector{compiled.step()}; });
    EXPECT_THAT(faults_of(step.plan()), IsEmpty());
    EXPECT_LE(step.plan().groups.size(), 15u) << step.plan().text();
    for (uint64_t k = 0; k < 4; ++k) {
        for (Network* network : {&compiled, &called}) {
            network->new_data(seed + 10 * k);
            network->sgd.set_rate(0.5 / static_cast<double>(k + 1));
        }
        step.run();
        EXPECT_NEAR(number(step.results()[0]), number(called.step()), 1e-5) << "step " << k << " of seed " << seed;
    }
    for (size_t p = 0; p < 4; ++p) expect_equal(compiled.all()[p], called.all()[p]);
}

/// Running moments are updated, too; gradients may be returned.
TEST_P(CompiledSteps, KeepRunningMomentsAndReturnGradients) {
    auto backend = std::make_shared<Backend>(device_);
    HostArray rows = host_array(f32, {20, 6});
    fill_uniform(rows, -1, 3, 11);
    const Tensor x(backend, rows, "x");
    const Operator mean_square("mean_square", [](const std::vector<tw::Tensor>& in) {
        const Axis i = reduce_axis("i", in[0].shape()[0]), j = reduce_axis("j", in[0].shape()[1]);
        return compute("loss", {}, [&] { return sum(in[0](i, j) * in[0](i, j), {i, j}); });
    });
    const BatchNorm compiled(backend, 6), called(backend, 6);
    const Linear layer(backend, 6, 4, 3);
    auto run = [&](const BatchNorm& norm) {
        const Tensor loss = mean_square({layer(norm(x))});
        backward(loss);
        std::vector<Tensor> results{loss};
        for (const Tensor& parameter : norm.parameters()) results.push_back(parameter.grad());
        return results;
    };
    const CompiledStep step = compile(backend, [&] { return run(compiled); });
    step.run();
    step.run();
    run(called);
    const std::vector<Tensor> expected = run(called);
    for (size_t k = 0; k < expected.size(); ++k) expect_equal(step.results()[k], expected[k], 1e-3);
    expect_equal(compiled.infer(x), called.infer(x));
}

TEST(CompileStep, RefusesWhatItCannotWriteDown) {
    Network network(open_device("emulated"), 1);
    const auto backend = network.backend;
    auto of = [&](const std::function<std::vector<Tensor>()>& step) { return compile(backend, step); };
    EXPECT_ERROR(of([&] { return std::vector{network.x}; }),
                 "compile: the function returns 'x', which the step does not make; return what it computes");
    EXPECT_ERROR(of([&] { return std::vector{Tensor()}; }), "returns 'an undefined tensor'");
    EXPECT_ERROR(of([] { return std::vector<Tensor>(); }),
                 "compile: the function returns nothing, and updates nothing");
    EXPECT_ERROR(of([&] {
                     network.step().to_host();
                     return std::vector<Tensor>();
                 }),
                 "'cross_entropy' is made by a step that was captured, and has no data; return it");
    EXPECT_ERROR(of([&] {
                     network.step().data().read<float>();
                     return std::vector<Tensor>();
                 }),
                 "buffer: it is of nothing yet; assign it one that a device has made, and read what a captured or "
                 "recorded step makes by its results");
    EXPECT_ERROR(CompiledStep().run(),
                 "compiled step: nothing has been compiled into it; assign it what nn::compile()");
    EXPECT_ERROR(of([&] {
                     compile(backend, [&] { return std::vector{network.step()}; });
                     return std::vector<Tensor>();
                 }),
                 "compile: a step is recorded or captured around this one");
    EXPECT_ERROR(of([&] {
                     const Tensor loss = cross_entropy(network.output(relu(network.hidden(network.x))), network.labels);
                     backward(loss);
                     network.sgd.step();
                     const Tensor again =
                         cross_entropy(network.output(relu(network.hidden(network.x))), network.labels);
                     network.sgd.step();
                     backward(again);
                     return std::vector{again};
                 }),
                 "was overwritten since 'cross_entropy' was made of it; call backward() before the update");
    const Executable& doubled = backend->built("doubled", [](const Target& target) {
        const tw::Tensor in = input("in", f32, {4});
        return Schedule({compute("out", {4}, [&](Expr i) { return in(i)*2.0; })}, target);
    });
    EXPECT_ERROR(of([&] {
                     backend->run(doubled, {});
                     return std::vector<Tensor>();
                 }),
                 "kernels are run while a step is captured; only operators, backward() and updates");
    EXPECT_ERROR(network.x.set_data(network.x.data()), "'x' has memory already");
    Tensor kept;
    compile(backend, [&] { return std::vector{relu(kept = network.hidden(network.x))}; });
    EXPECT_ERROR(relu(kept), "'linear' is made by a step that was captured, and has no data");
    EXPECT_ERROR(of([&] { return std::vector{relu(kept)}; }), "'x' belongs to another step that was captured");
}

}  // namespace
}  // namespace tw::nn

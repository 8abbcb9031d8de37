// Tutorial 24: a step as one graph. The perceptron of tutorial 15, whose forward pass, gradients and updates are
// planned together: which operations share a kernel, which memory lies between them, what waits for what.
//
// Tutorial 15 records the kernels of one call after the other. Here the step's function is called once, computes
// nothing, and leaves one graph of declarations, as if somebody had written it down by hand; docs/step.md tells what
// becomes of it.
#include <algorithm>
#include <numeric>
#include <random>

#include "ops/layers.h"
#include "ops/optimizer.h"
#include "ops/step/compile_step.h"
#include "tutorials/digits.h"
#include "tutorials/lesson.h"

using namespace tw;

namespace {

// The images of a batch, whose number lies in device memory: 64 rows from place to place of a shuffled order.
const nn::Operator pick_images("pick_images", [](const std::vector<Tensor>& in) {
    const Tensor &images = in[0], &order = in[1], &batch = in[2];
    return compute("batch_images", {order.shape()[1], images.shape()[1]},
                   [&](Expr i, Expr j) { return images(order(batch(0), i), j); });
});
const nn::Operator pick_labels("pick_labels", [](const std::vector<Tensor>& in) {
    const Tensor &labels = in[0], &order = in[1], &batch = in[2];
    return compute("batch_labels", {order.shape()[1]}, [&](Expr i) { return labels(order(batch(0), i)); });
});

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "24. A step as one graph");
    const int64_t Width = lesson.size(32, 128), Batch = 64, Epochs = lesson.size(3, 40);
    DigitsSplit digits = read_digits();
    const int64_t Steps = digits.training.size() / Batch;

    auto backend = std::make_shared<nn::Backend>(lesson.device());
    nn::Module network;  // names its layers
    const nn::Linear hidden = network.register_module("hidden", nn::Linear(backend, 64, Width, 1));
    const nn::Linear output = network.register_module("output", nn::Linear(backend, Width, 10, 2));
    nn::Sgd sgd(network.parameters(), 0.1, 0.9);

    nn::Tensor images = on_device(backend, f32, {digits.training.size(), 64}, digits.training.pixels, "images");
    nn::Tensor labels = on_device(backend, i32, {digits.training.size()}, digits.training.labels, "labels");
    nn::Tensor order(backend, i32, {Steps, Batch}, "order"), batch(backend, i32, {1}, "batch");

    // The step is written as ever. What it is given from outside, parameters and velocities among it, are inputs of the
    // graph; what it returns are its results. What a module calls belongs to it, and so do the gradients of that; other
    // calls belong to the scopes that live around them.
    auto one_step = [&] {
        nn::Tensor x = pick_images({images, order, batch}), y = pick_labels({labels, order, batch});
        nn::Tensor logits = output(nn::relu(hidden(x)));
        nn::Tensor loss;
        {
            const nn::Scope scope("loss");
            loss = nn::cross_entropy(logits, y);
        }
        nn::backward(loss);
        sgd.step();
        return std::vector{loss};
    };

    // A plan is made by passes, a few lines each of a table in ops/step/plan_step.cpp: equal operations become one,
    // values are rounded where that is asked for, operations are cut into groups, groups are put into an order, and
    // what lies between them into memory. `watch` sees the step behind each of them; its text() has all of it.
    fmt::print("The step as each pass leaves it:\n\n");
    nn::CompiledStep step =
        nn::compile(backend, one_step, {.watch = [](const StepStage& stage) {
                        const std::string text = stage.text();
                        if (stage.plan)
                            fmt::print("    {:<13} {}\n", stage.pass, text.substr(0, text.find('\n')));
                        else
                            fmt::print("    {:<13} {} operations\n", stage.pass, std::ranges::count(text, '\n'));
                    }});
    fmt::print("\n");

    // Which operations stand together and why, what each group reads, writes and waits for, and where the values that
    // lie between them are. A ReLU is made with its product, and its gradient with the product that it stands behind;
    // a velocity and its parameter are one kernel.
    lesson.say(step.plan().text());
    auto made_together = [&](const std::string& one, const std::string& other) {
        return std::ranges::any_of(step.plan().groups, [&](const StepGroup& group) {
            const auto has = [&](const std::string& name) { return std::ranges::count(group.operations, name) > 0; };
            return has(one) && has(other);
        });
    };
    lesson.expect(made_together("linear", "relu") && made_together("d_relu", "d_linear"),
                  "ReLU and its gradient are made with the products that they stand behind");
    lesson.expect(faults_of(step.plan()).empty(), "nothing in the plan uses memory that it must not");
    int64_t in_arena = 0;
    for (const StepValue& value : step.plan().values)
        if (value.place == StepValue::Place::Arena) in_arena += value.bytes;
    fmt::print("Between groups lie {} bytes, in an arena of {}.\n\n", in_arena, step.plan().arena_bytes);

    // What changes from step to step lies in device memory: the batch's number, the order, the rate.
    std::mt19937 random(7);
    std::vector<int32_t> shuffled(digits.training.labels.size());
    std::iota(shuffled.begin(), shuffled.end(), 0);
    double first = 0, last = 0;
    for (int64_t epoch = 0; epoch < Epochs; ++epoch) {
        for (size_t i = shuffled.size() - 1; i > 0; --i) std::swap(shuffled[i], shuffled[random() % (i + 1)]);
        order.data().write(std::vector<int32_t>(shuffled.begin(), shuffled.begin() + Steps * Batch));
        for (int32_t k = 0; k < Steps; ++k) {
            batch.data().write(std::vector<int32_t>{k});
            step.run();
        }
        last = step.results()[0].data().read<float>()[0];
        if (epoch == 0) first = last;
    }
    fmt::print("{} steps; loss {:.4f} behind the first epoch, {:.4f} behind the last.\n", Epochs * Steps, first, last);

    // What each kernel costs, the longest first: as the model predicts it, and as measured by running the step a few
    // times with an event between any two launches; parameters are put back. The emulator's times are no speeds. In
    // brackets stands where in the network operations belong. The same names say what stays f32 in mixed precision:
    // {.mixed = {.values = bf16, .scopes = {{"output", f32}}}}.
    const std::string costs = step.explain({.sorted = true});
    lesson.say(costs);
    lesson.expect(costs.find("(hidden)") != std::string::npos, "operations know their modules");

    // Parameters are where they were: the layers read them, call by call, as before.
    nn::Tensor test = on_device(backend, f32, {digits.test.size(), 64}, digits.test.pixels, "test_images");
    double right = nn::accuracy(output(nn::relu(hidden(test))).to_host(), digits.test.labels);
    const double Goal = lesson.size(0, 1) ? 0.95 : 0.85;
    fmt::print("Test accuracy {:.2f} % on {} (the goal is {:.0f} %).\n", right * 100, lesson.device()->name(),
               Goal * 100);
    lesson.expect(right >= Goal, "it has learned to read");
    return lesson.finish();
}

// Tutorial 20: a convolution net. Convolutions, batch norm, pooling and a linear layer learn to read handwritten
// digits.
//
// As in tutorial 15, what runs on the device are generated kernels, and an epoch is one graph. What is new are layers
// over images, [images, height, width, channels], channels last. Each is an expression of a page or less
// (schedules/convolve.cpp, pooling.cpp, normalization.cpp), and its gradient is derived from that: nobody wrote a
// backward pass. Tutorial 21 writes a layer that the library does not have.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "dsl/differentiate.h"
#include "ops/convolution.h"
#include "ops/layers.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/pooling.h"
#include "ops/step/compile_step.h"
#include "tutorials/digits.h"
#include "tutorials/lesson.h"

using namespace tw;

namespace {

// 8 x 8 pixels -> 8 x 8 x width -> pooled to 4 x 4 -> 4 x 4 x 2 width, each channel of which sees half of the channels
// before it -> pooled to 2 x 2 -> a row -> 10 digits.
struct Net : nn::Module {
    nn::Conv2d first, second;
    nn::BatchNorm first_norm, second_norm;
    nn::Linear output;

    Net(const std::shared_ptr<nn::Backend>& backend, int64_t width)
        : first(register_module("first", nn::Conv2d(backend, 1, width, {3}, 1, {.padding = {1}}))),
          second(
              register_module("second", nn::Conv2d(backend, width, 2 * width, {3}, 2, {.padding = {1}, .groups = 2}))),
          first_norm(register_module("first_norm", nn::BatchNorm(backend, width, 0.3))),
          second_norm(register_module("second_norm", nn::BatchNorm(backend, 2 * width, 0.3))),
          output(register_module("output", nn::Linear(backend, 4 * 2 * width, 10, 3))) {}

    // In training, batch norm takes the moments of the batch, and notes them for later; behind eval() it takes these.
    nn::Tensor operator()(const nn::Tensor& x) const {
        const nn::Tensor edges = nn::max_pool(nn::relu(first_norm(first(x))), {.window = {2}});
        const nn::Tensor shapes = nn::average_pool(nn::relu(second_norm(second(edges))), {.window = {2}});
        return output(nn::flatten(shapes));
    }
};

// The rows of `images` that row `step` of `order` names, as images.
const nn::Operator pick_images("pick_images", [](const std::vector<Tensor>& in) {
    const Tensor &images = in[0], &order = in[1], &step = in[2];
    return compute("batch", {order.shape()[1], 8, 8, 1},
                   [&](Expr n, Expr row, Expr column, Expr) { return images(order(step(0), n), row * 8 + column); });
});
const nn::Operator pick_labels("pick_labels", [](const std::vector<Tensor>& in) {
    const Tensor &labels = in[0], &order = in[1], &step = in[2];
    return compute("batch_labels", {order.shape()[1]}, [&](Expr n) { return labels(order(step(0), n)); });
});

// What a convolution with a stride is made of, and what `gradients` makes of it: of a stride of 2, each pixel has the
// taps of its phase and no others; of groups, each channel has the filters of its group.
void show_a_convolution(const Lesson& lesson) {
    lesson.say("A convolution, stride 2, in 4 groups, and the gradients of its operands:");
    const Tensor x = input("x", f32, {16, 8, 8, 8}), w = input("w", f32, {16, 3, 3, 2});
    const Tensor y = schedules::convolve("y", x, w, {}, {.stride = {2}, .padding = {1}, .groups = 4});
    const Tensor dy = input("dy", f32, {16, 4, 4, 16});
    lesson.show(y);
    for (const Tensor& gradient : gradients(y, dy, {x, w})) lesson.show(gradient);
}

// The same lines, planned as a whole: recorded, each call has kernels of its own; compiled, operations of neighbouring
// calls share kernels, as batch norm, ReLU and pooling do, and gradients and updates with them (tutorial 24 has more).
// In brackets stands which layer an operation, or what it is the gradient of, belongs to.
void show_the_step_compiled(Lesson& lesson, const std::shared_ptr<nn::Backend>& backend, size_t num_recorded,
                            const std::function<nn::Tensor(const nn::Tensor& step)>& train) {
    const nn::Tensor number = on_device(backend, i32, {1}, std::vector<int32_t>{0}, "number");
    const nn::CompiledStep step = nn::compile(backend, [&] { return std::vector{train(number)}; });
    lesson.say(step.explain({.sorted = true}));
    lesson.expect(step.plan().num_kernels() < num_recorded,
                  fmt::format("{} kernels a step, {} recorded", step.plan().num_kernels(), num_recorded));
    step.run();
    const double loss = step.results()[0].to_host().at({}).real;
    lesson.expect(std::isfinite(loss),
                  fmt::format("it goes on from where the recorded ones have come: loss {:.3f}", loss));
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "20. A convolution net");
    show_a_convolution(lesson);

    const int64_t Width = lesson.size(4, 16), Batch = lesson.size(32, 64), Epochs = lesson.size(5, 20);
    const DigitsSplit digits = read_digits();
    const int64_t Steps = lesson.size(10, digits.training.size() / Batch);
    const double Goal = lesson.size(0, 1) ? 0.97 : 0.7;
    auto backend = std::make_shared<nn::Backend>(lesson.device());
    const Net net(backend, Width);
    const double Rate = 0.2, Momentum = 0.9;
    nn::Sgd sgd(net.parameters(), Rate, Momentum);

    const nn::Tensor images = on_device(backend, f32, {digits.training.size(), 64}, digits.training.pixels, "images");
    const nn::Tensor labels = on_device(backend, i32, {digits.training.size()}, digits.training.labels, "labels");
    const nn::Tensor order(backend, i32, {Steps, Batch}, "order");

    // One graph: of each step its forward pass, its backward pass and its update.
    std::vector<nn::Tensor> losses;
    auto begin = std::chrono::steady_clock::now();
    auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    Graph epoch = backend->record([&] {
        for (int32_t k = 0; k < Steps; ++k) {
            const nn::Tensor step = on_device(backend, i32, {1}, std::vector<int32_t>{k}, "step");
            const nn::Tensor x = pick_images({images, order, step}), y = pick_labels({labels, order, step});
            losses.push_back(nn::cross_entropy(net(x), y));
            nn::backward(losses.back());
            sgd.step();
        }
    });
    fmt::print("{} launches for {} steps; kernels built and recorded in {:.2f} s.\n", epoch.size(), Steps, seconds());

    std::mt19937 random(7);
    std::vector<int32_t> shuffled(digits.training.labels.size());
    std::iota(shuffled.begin(), shuffled.end(), 0);
    begin = std::chrono::steady_clock::now();
    for (int64_t e = 0; e < Epochs; ++e) {
        for (size_t i = shuffled.size() - 1; i > 0; --i) std::swap(shuffled[i], shuffled[random() % (i + 1)]);
        order.data().write(std::vector<int32_t>(shuffled.begin(), shuffled.begin() + Steps * Batch));
        // The rate is in device memory: the graph stays as it is. Small steps at the end let the moments settle.
        if (e + 1 == Epochs) sgd.set_rate(Rate / 10);
        epoch.run();
        fmt::print("epoch {}: loss {:.3f} at first, {:.3f} at last, after {:.2f} s\n", e + 1,
                   losses.front().data().read<float>()[0], losses.back().data().read<float>()[0], seconds());
    }

    show_the_step_compiled(lesson, backend, epoch.size() / static_cast<size_t>(Steps), [&](const nn::Tensor& step) {
        const nn::Tensor x = pick_images({images, order, step}), y = pick_labels({labels, order, step});
        const nn::Tensor loss = nn::cross_entropy(net(x), y);
        nn::backward(loss);
        sgd.step();
        return loss;
    });

    // Inference takes the running moments: what is read out of an image does not depend on the others.
    net.eval();
    const int64_t Tested = lesson.size(120, digits.test.size());
    const std::vector<float> pixels(digits.test.pixels.begin(), digits.test.pixels.begin() + Tested * 64);
    const nn::Tensor test = on_device(backend, f32, {Tested, 8, 8, 1}, pixels, "test");
    const double right =
        nn::accuracy(net(test).to_host(), {digits.test.labels.begin(), digits.test.labels.begin() + Tested});
    lesson.expect(right >= Goal, fmt::format("{:.1f} % of {} images that it has not seen are read right (the goal is "
                                             "{:.0f} %)",
                                             right * 100, Tested, Goal * 100));
    return lesson.finish();
}

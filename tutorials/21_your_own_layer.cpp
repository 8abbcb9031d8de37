// Tutorial 21: your own layer. A convolution whose channels are weighed by what the whole image is like
// (squeeze-and-excitation: Hu, Shen, Sun 2018), as an operator in one file.
//
// A layer is a function from tensors to a tensor. It may call the library's declarations, schedules::convolve and the
// like, as well as compute(). What it needs for training, the gradients of all that it reads, is derived; what it needs
// to run, a schedule, is chosen by rule where you bring none.
#include <cmath>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/check.h"
#include "ops/layers.h"
#include "ops/optimizer.h"
#include "schedules/convolve.h"
#include "tutorials/digits.h"
#include "tutorials/lesson.h"

using namespace tw;

namespace {

// The layer. x [images, height, width, channels], w [filters, 3, 3, channels], down [hidden, filters] and up [filters,
// hidden] -> [images, height, width, filters].
Tensor weighed_convolution(const std::vector<Tensor>& in) {
    const Tensor &x = in[0], &w = in[1], &down = in[2], &up = in[3];
    Tensor y = schedules::convolve("y", x, w, {}, {.padding = {1}});
    const Expr images = y.shape()[0], height = y.shape()[1], width = y.shape()[2], filters = y.shape()[3];
    Axis p = reduce_axis("p", height), q = reduce_axis("q", width);
    Axis f = reduce_axis("f", filters), h = reduce_axis("h", down.shape()[0]);

    // squeeze: what each filter has found in the whole image
    Tensor found = compute("found", {images, filters}, [&](Expr n, Expr c) {
        return sum(y(n, p, q, c), {p, q}) / cast(f32, height * width);
    });
    // excite: two small layers make a weight from 0 to 1 of it
    Tensor hidden = compute("hidden", {images, down.shape()[0]},
                            [&](Expr n, Expr i) { return relu(sum(found(n, f) * down(i, f), f)); });
    Tensor weight =
        compute("weight", {images, filters}, [&](Expr n, Expr c) { return sigmoid(sum(hidden(n, h) * up(c, h), h)); });
    return compute("weighed", {images, height, width, filters},
                   [&](Expr n, Expr i, Expr j, Expr c) { return y(n, i, j, c) * weight(n, c); });
}

// An operator is that function and a name.
const nn::Operator weighed("weighed_convolution", weighed_convolution);

// A loss: the mean square of the distance from a target.
const nn::Operator distance("distance", [](const std::vector<Tensor>& in) {
    std::vector<Axis> axes;
    for (const Expr& extent : in[0].shape()) axes.push_back(reduce_axis("k", extent));
    const std::vector<Operand> at(axes.begin(), axes.end());
    return compute("loss", {}, [&] {
        Expr off = in[0].read(at) - in[1].read(at);
        return sum(off * off, axes) / 1000.0f;
    });
});

// The slope of the loss along one element of an input, from its declaration in float64: the oracle of tutorial 1.
double slope(const Tensor& loss, Bindings bindings, const std::string& input, const std::vector<int64_t>& at) {
    constexpr double Step = 1.0 / 1024;
    const double before = bindings.inputs.at(input).at(at).real;
    auto loss_at = [&](double value) {
        bindings.inputs.at(input).set(at, make_value(f32, value));
        return interpret_plain({loss}, bindings, Precision::Float64)[0].at({}).real;
    };
    return (loss_at(before + Step) - loss_at(before - Step)) / (2 * Step);
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "21. Your own layer");
    const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
        {"x", {4, 6, 6, 3}}, {"w", {8, 3, 3, 3}}, {"down", {2, 8}}, {"up", {8, 2}}, {"target", {4, 6, 6, 8}}};
    std::vector<Tensor> inputs;
    for (const auto& [name, shape] : shapes) inputs.push_back(input(name, f32, {shape.begin(), shape.end()}));

    lesson.say("The layer as it was declared, and what is derived for its filters:");
    const Tensor y = weighed_convolution(inputs), dy = input("dy", f32, {4, 6, 6, 8});
    lesson.show(y);
    lesson.show(gradients(y, dy, {inputs[1]})[0]);

    // The same through the tape: kernels of the forward and of the backward pass, built at the first call.
    auto backend = std::make_shared<nn::Backend>(lesson.device());
    Bindings bindings;
    std::vector<nn::Tensor> on_device;
    for (size_t i = 0; i < shapes.size(); ++i) {
        HostArray host = host_array(f32, shapes[i].second);
        fill_uniform(host, -1, 1, i + 1);
        for (auto at = std::vector<int64_t>(host.shape.size(), 0);;) {  // few bits, so that a step is exact
            host.set(at, make_value(f32, std::round(host.at(at).real * 1024) / 1024));
            if (!advance(at, host.shape)) break;
        }
        bindings.inputs[shapes[i].first] = host;
        on_device.emplace_back(backend, host, shapes[i].first);
        if (i < 4) on_device.back().set_requires_grad();
    }
    auto loss_of = [&](const nn::Operator& layer) {
        return distance({layer({on_device[0], on_device[1], on_device[2], on_device[3]}), on_device[4]});
    };
    nn::backward(loss_of(weighed));

    lesson.say("Gradients of kernels against slopes of the declaration in float64:");
    std::vector<Axis> axes;
    for (const Expr& extent : y.shape()) axes.push_back(reduce_axis("k", extent));
    const std::vector<Operand> at(axes.begin(), axes.end());
    const Tensor loss = compute("loss", {}, [&] {
        Expr off = y.read(at) - inputs[4].read(at);
        return sum(off * off, axes) / 1000.0f;
    });
    for (size_t i = 0; i < 4; ++i) {
        std::vector<int64_t> place;
        for (int64_t extent : shapes[i].second) place.push_back(extent / 2);
        const double got = on_device[i].grad().to_host().at(place).real;
        const double wanted = slope(loss, bindings, shapes[i].first, place);
        lesson.expect(
            std::fabs(got - wanted) < 1e-5 * (1 + std::fabs(wanted)),
            fmt::format("d_{}{} is {:.6f}, the slope {:.6f}", shapes[i].first, indices_text(place), got, wanted));
    }

    // And it learns: what another layer of the kind, of other weights, makes of these images.
    nn::Sgd sgd({on_device[1], on_device[2], on_device[3]}, /*rate=*/1.0, /*momentum=*/0.9);
    double first = 0, last = 0;
    for (int step = 0; step < 30; ++step) {
        const nn::Tensor now = loss_of(weighed);
        last = now.to_host().at({}).real;
        if (step == 0) first = last;
        nn::backward(now);
        sgd.step();
    }
    lesson.expect(last < 0.9 * first, fmt::format("the loss falls from {:.4f} to {:.4f} in 30 steps", first, last));
    return lesson.finish();
}

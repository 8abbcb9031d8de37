// Tutorial 15: training. A perceptron with one hidden layer learns to read handwritten digits.
//
// Everything that runs on the device here is a generated kernel: the layers, their derived gradients, the update, even
// the choice of a batch. docs/training.md tells how an operation travels from expression to kernels.
#include <chrono>
#include <filesystem>
#include <numeric>
#include <random>

#include "ops/layers.h"
#include "ops/optimizer.h"
#include "support/loss_curve.h"
#include "support/progress.h"
#include "tutorials/digits.h"
#include "tutorials/lesson.h"

using namespace tw;

namespace {

// An operator of our own. Its expression is all that we write: the rows of `images` that row `step` of `order` names.
// The position is read from device memory, so that shuffling is one small copy an epoch and no kernel changes.
const nn::Operator pick_images("pick_images", [](const std::vector<Tensor>& in) {
    const Tensor &images = in[0], &order = in[1], &step = in[2];
    return compute("batch", {order.shape()[1], images.shape()[1]},
                   [&](Expr i, Expr j) { return images(order(step(0), i), j); });
});
const nn::Operator pick_labels("pick_labels", [](const std::vector<Tensor>& in) {
    const Tensor &labels = in[0], &order = in[1], &step = in[2];
    return compute("batch_labels", {order.shape()[1]}, [&](Expr i) { return labels(order(step(0), i)); });
});

// The network: 64 pixels -> hidden -> 10 digits. A model is its layers and what they are called with; it knows nothing
// of gradients, kernels or devices.
struct Mlp {
    nn::Linear hidden, output;
    Mlp(const std::shared_ptr<nn::Backend>& backend, int64_t width)
        : hidden(backend, 64, width, 1), output(backend, width, 10, 2) {}
    nn::Tensor operator()(const nn::Tensor& x) const { return output(nn::relu(hidden(x))); }
    std::vector<nn::Tensor> parameters() const {
        std::vector<nn::Tensor> all = hidden.parameters();
        for (const nn::Tensor& parameter : output.parameters()) all.push_back(parameter);
        return all;
    }
};

double accuracy_on(const Mlp& model, const std::shared_ptr<nn::Backend>& backend, const Digits& digits) {
    nn::Tensor images = on_device(backend, f32, {digits.size(), 64}, digits.pixels, "test_images");
    return nn::accuracy(model(images).to_host(), digits.labels);
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "15. Training an MLP");
    const int64_t Width = lesson.size(32, 128), Batch = 64, Epochs = lesson.size(3, 40);
    const double Goal = lesson.size(0, 1) ? 0.95 : 0.85, Rate = 0.1, Momentum = 0.9;

    DigitsSplit digits = read_digits();
    nn::check_labels(digits.training.labels, 10);
    nn::check_labels(digits.test.labels, 10);
    fmt::print("{} images to learn from, {} to test on, {} hidden units.\n", digits.training.size(), digits.test.size(),
               Width);

    auto backend = std::make_shared<nn::Backend>(lesson.device());
    Mlp model(backend, Width);
    nn::Sgd sgd(model.parameters(), Rate, Momentum);

    const int64_t Steps = digits.training.size() / Batch;  // an epoch; the shuffle leaves other images over each time
    nn::Tensor images = on_device(backend, f32, {digits.training.size(), 64}, digits.training.pixels, "images");
    nn::Tensor labels = on_device(backend, i32, {digits.training.size()}, digits.training.labels, "labels");
    nn::Tensor order(backend, i32, {Steps, Batch}, "order");

    // An epoch is recorded once, as one graph: forward, loss, backward and update of every step. Nothing runs yet; the
    // first call of each operator builds its kernels, the later ones find them.
    std::vector<nn::Tensor> losses;
    auto begin = std::chrono::steady_clock::now();
    auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    Graph epoch = backend->record([&] {
        for (int32_t k = 0; k < Steps; ++k) {
            nn::Tensor step = on_device(backend, i32, {1}, std::vector<int32_t>{k}, "step");
            nn::Tensor x = pick_images({images, order, step}), y = pick_labels({labels, order, step});
            losses.push_back(nn::cross_entropy(model(x), y));
            nn::backward(losses.back());
            sgd.step();
        }
    });
    fmt::print("{} launches an epoch of {} steps; kernels built and recorded in {:.2f} s.\n", epoch.size(), Steps,
               seconds());

    // Training: shuffle, run the graph, read the losses. The host waits once an epoch.
    std::mt19937 random(7);
    std::vector<int32_t> shuffled(digits.training.labels.size());
    std::iota(shuffled.begin(), shuffled.end(), 0);
    LossCurve curve;
    begin = std::chrono::steady_clock::now();
    {
        Progress bar("training", Epochs);
        for (int64_t e = 0; e < Epochs; ++e) {
            for (size_t i = shuffled.size() - 1; i > 0; --i) std::swap(shuffled[i], shuffled[random() % (i + 1)]);
            order.data().write(std::vector<int32_t>(shuffled.begin(), shuffled.begin() + Steps * Batch));
            epoch.run();
            for (const nn::Tensor& loss : losses)
                curve.emplace_back(int64_t(curve.size()) + 1, loss.data().read<float>()[0]);
            bar.show(e + 1, fmt::format("loss {:.4f}", curve.back().second));
        }
    }
    fmt::print("{} steps in {:.2f} s; loss {:.4f} at first, {:.4f} at last.\n", curve.size(), seconds(),
               curve.front().second, curve.back().second);
    // The curve as a picture that any browser shows. Losses fall by orders of magnitude: the axis is logarithmic.
    const std::string picture = (std::filesystem::temp_directory_path() / "training_loss.svg").string();
    write_svg(picture, curve, "loss");

    double right = accuracy_on(model, backend, digits.test);
    fmt::print("Test accuracy {:.2f} % on {} (the goal is {:.0f} %). The loss curve is in {}.\n", right * 100,
               lesson.device()->name(), Goal * 100, picture);
    return right >= Goal ? lesson.finish() : 1;
}

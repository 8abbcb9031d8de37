// Networks that read handwritten digits.
#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include "ops/convolution.h"
#include "ops/layers.h"
#include "ops/modules/dropout.h"
#include "ops/normalization.h"
#include "ops/parameters.h"
#include "ops/pooling.h"
#include "support/error.h"
#include "tools/train/model.h"

namespace tw {

uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15 + b + 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

std::vector<int32_t> shuffled(int64_t count, uint64_t seed) {
    std::vector<int32_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    for (size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[mixed(seed, n) % n]);
    return order;
}

namespace {

constexpr int64_t side = 8, classes = 10;

struct DigitImages {
    std::vector<float> pixels;  // 64 an image, 0 to 1
    std::vector<int32_t> labels;

    int64_t size() const { return static_cast<int64_t>(labels.size()); }
};
/// Every fifth image is held out.
struct DigitData {
    DigitImages training, held_out;
};

DigitData read_digit_images() {
    const std::string path = TILEWRIGHT_DIGITS;
    std::ifstream file(path);
    if (!file)
        throw_error(Error, "train: cannot read {}; build tw in the folder of its sources, or put the file there", path);
    DigitData data;
    std::string line, number;
    for (int64_t image = 0; std::getline(file, line); ++image) {
        DigitImages& images = image % 5 == 4 ? data.held_out : data.training;
        std::istringstream numbers(line);
        for (int64_t pixel = 0; pixel < side * side && std::getline(numbers, number, ','); ++pixel)
            images.pixels.push_back(std::stof(number) / 16);
        std::getline(numbers, number);
        images.labels.push_back(std::stoi(number));
    }
    return data;
}

/// Batches of images, and the share of those held out that are read right.
class DigitModel : public TrainedModel {
public:
    DigitModel(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options, std::vector<int64_t> image)
        : backend_(backend), seed_(options.seed), image_(std::move(image)), data_(read_digit_images()) {
        batch_ = options.batch > 0 ? options.batch : 64;
        user_check(batch_ <= data_.training.size(), std::source_location::current(),
                   "train: a batch of {} images; there are {} to learn from", batch_, data_.training.size());
        x_ = images(data_.training, {}, batch_, "x");
        labels_ = nn::Tensor(backend_, i32, {batch_}, "labels");
        draw(0);
    }

    nn::Tensor loss() const override { return nn::cross_entropy(logits(x_), labels_); }
    void draw(int64_t step) override {
        const int64_t in_epoch = data_.training.size() / batch_, epoch = step / in_epoch;
        if (epoch != epoch_) order_ = shuffled(data_.training.size(), mixed(seed_, static_cast<uint64_t>(epoch)));
        epoch_ = epoch;
        const auto first = order_.begin() + step % in_epoch * batch_;
        std::vector<float> pixels;
        std::vector<int32_t> labels;
        for (auto image = first; image != first + batch_; ++image) {
            const auto begin = data_.training.pixels.begin() + int64_t{*image} * side * side;
            pixels.insert(pixels.end(), begin, begin + side * side);
            labels.push_back(data_.training.labels[static_cast<size_t>(*image)]);
        }
        x_.data().write(pixels);
        labels_.data().write(labels);
    }
    Score score() override {
        if (!held_out_.defined())
            held_out_ = images(data_.held_out, data_.held_out.pixels, data_.held_out.size(), "held_out");
        const double right = nn::accuracy(trained_logits(held_out_).to_host(), data_.held_out.labels);
        return {right, fmt::format("{:.2f} % of {} images that it has not seen are read right", right * 100,
                                   data_.held_out.size())};
    }

protected:
    /// Of images [images, ...], as declared.
    virtual nn::Tensor logits(const nn::Tensor& x) const = 0;
    virtual nn::Tensor trained_logits(const nn::Tensor& x) const { return logits(x); }

    nn::Module network_;  // names its layers

private:
    nn::Tensor images(const DigitImages&, const std::vector<float>& pixels, int64_t count, const char* name) const {
        std::vector<int64_t> shape{count};
        shape.insert(shape.end(), image_.begin(), image_.end());
        const nn::Tensor tensor(backend_, f32, shape, name);
        if (!pixels.empty()) tensor.data().write(pixels);
        return tensor;
    }

    std::shared_ptr<nn::Backend> backend_;
    uint64_t seed_;
    std::vector<int64_t> image_;
    DigitData data_;
    int64_t batch_ = 0, epoch_ = -1;
    std::vector<int32_t> order_;
    nn::Tensor x_, labels_, held_out_;
};

class Mlp : public DigitModel {
public:
    Mlp(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options)
        : DigitModel(backend, options, {side * side}),
          width_(options.small ? 32 : 256),
          hidden_(network_.register_module("hidden", nn::Linear(backend, side * side, width_, options.seed))),
          output_(network_.register_module("output", nn::Linear(backend, width_, classes, options.seed + 1))),
          dropout_(
              network_.register_module("dropout", nn::Dropout(backend, options.small ? 0 : 0.5, options.seed + 2))) {}
    std::string description() const override {
        return fmt::format("{} pixels, {} hidden units, dropout, {} digits", side * side, width_, classes);
    }
    std::vector<nn::Tensor> parameters() const override {
        return nn::joined({hidden_.parameters(), output_.parameters()});
    }

    std::vector<nn::Tensor> states() const override {
        std::vector<nn::Tensor> all;
        for (const auto& [name, buffer] : dropout_.named_buffers()) all.push_back(buffer);
        return all;
    }

private:
    nn::Tensor logits(const nn::Tensor& x) const override { return output_(dropout_(nn::relu(hidden_(x)))); }
    nn::Tensor trained_logits(const nn::Tensor& x) const override { return output_(nn::relu(hidden_(x))); }

    int64_t width_;
    nn::Linear hidden_, output_;
    nn::Dropout dropout_;
};

class Cnn : public DigitModel {
public:
    Cnn(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options)
        : DigitModel(backend, options, {side, side, 1}),
          width_(options.small ? 4 : 16),
          first_(
              network_.register_module("first", nn::Conv2d(backend, 1, width_, {3}, options.seed, {.padding = {1}}))),
          second_(network_.register_module(
              "second", nn::Conv2d(backend, width_, 2 * width_, {3}, options.seed + 1, {.padding = {1}}))),
          first_norm_(network_.register_module("first_norm", nn::BatchNorm(backend, width_))),
          second_norm_(network_.register_module("second_norm", nn::BatchNorm(backend, 2 * width_))),
          output_(network_.register_module("output", nn::Linear(backend, 4 * 2 * width_, classes, options.seed + 2))) {}
    std::string description() const override {
        return fmt::format("convolutions of {} and {} channels with batch norm, pooling, {} digits", width_, 2 * width_,
                           classes);
    }
    std::vector<nn::Tensor> parameters() const override {
        return nn::joined({first_.parameters(), first_norm_.parameters(), second_.parameters(),
                           second_norm_.parameters(), output_.parameters()});
    }
    std::vector<nn::Tensor> states() const override {
        return {first_norm_.running_mean(), first_norm_.running_variance(), second_norm_.running_mean(),
                second_norm_.running_variance()};
    }

private:
    nn::Tensor logits(const nn::Tensor& x) const override {
        return run(x, [](const nn::BatchNorm& norm, const nn::Tensor& y) { return norm(y); });
    }
    nn::Tensor trained_logits(const nn::Tensor& x) const override {
        return run(x, [](const nn::BatchNorm& norm, const nn::Tensor& y) { return norm.infer(y); });
    }
    template <class Norm>
    nn::Tensor run(const nn::Tensor& x, const Norm& by) const {
        const nn::Tensor edges = nn::max_pool(nn::relu(by(first_norm_, first_(x))), {.window = {2}});
        const nn::Tensor shapes = nn::average_pool(nn::relu(by(second_norm_, second_(edges))), {.window = {2}});
        return output_(nn::flatten(shapes));
    }

    int64_t width_;
    nn::Conv2d first_, second_;
    nn::BatchNorm first_norm_, second_norm_;
    nn::Linear output_;
};

}  // namespace

std::unique_ptr<TrainedModel> make_mlp(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options) {
    return std::make_unique<Mlp>(backend, options);
}
std::unique_ptr<TrainedModel> make_cnn(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options) {
    return std::make_unique<Cnn>(backend, options);
}

}  // namespace tw

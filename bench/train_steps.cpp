#include "bench/train_steps.h"

#include <cmath>

#include <fmt/ranges.h>

#include "ops/attention.h"
#include "ops/convolution.h"
#include "ops/layers.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/views.h"
#include "support/error.h"

namespace tw::bench {
namespace {

using Sizes = std::map<std::string, int64_t>;
using Named = std::vector<std::pair<std::string, nn::Tensor>>;

/// A step that is planned alone, without data.
struct PlannedAlone {
    const Target& target;
    StepPlan plan = {};
};

/// What a step is made of while it is written down.
struct Making {
    std::shared_ptr<nn::Backend> backend;
    Sizes sizes;
    uint64_t seed;
    StepOptions options;
    PlannedAlone* alone;  // nullptr: it is compiled
    Named tensors;

    int64_t size(const char* name) const { return sizes.at(name); }

    /// Uniform in [-1, 1).
    nn::Tensor data(const std::string& name, const std::vector<int64_t>& shape) {
        if (alone) return keep(name, nn::Tensor(backend, f32, shape, name));
        HostArray host = host_array(f32, shape);
        fill_uniform(host, -1, 1, seed * 131 + tensors.size());
        return keep(name, nn::Tensor(backend, host, name));
    }
    nn::Tensor labels(const std::string& name, int64_t rows, int64_t classes) {
        HostArray host = host_array(i32, {rows});
        for (int64_t row = 0; row < rows; ++row)
            host.set({row}, make_value(i32, static_cast<int64_t>((row * 7919 + int64_t(seed)) % classes)));
        return keep(name, nn::Tensor(backend, host, name));
    }
    nn::Tensor keep(const std::string& name, const nn::Tensor& tensor) {
        tensors.emplace_back(name, tensor);
        return tensor;
    }
    void keep(const std::vector<std::string>& names, const std::vector<nn::Tensor>& all) {
        for (size_t k = 0; k < all.size(); ++k) keep(names[k], all[k]);
    }
    /// Moments are known as "up.weight.first_moment": what a step makes of a gradient that hardly is one tells nothing
    /// in its parameter.
    nn::AdamW adamw(const std::vector<std::string>& names, const std::vector<nn::Tensor>& parameters) {
        keep(names, parameters);
        nn::AdamW adamw(parameters, 1e-3);
        const std::vector<nn::Tensor> states = adamw.states();
        for (size_t k = 0; k < names.size(); ++k) {
            keep(names[k] + ".first_moment", states[2 * k]);
            keep(names[k] + ".second_moment", states[2 * k + 1]);
        }
        return adamw;
    }
    TrainStep compiled(const std::function<std::vector<nn::Tensor>()>& step, const std::vector<std::string>& results) {
        if (alone) {
            alone->plan = nn::plan(backend, step, options, alone->target);
            return {};
        }
        TrainStep made{.step = nn::compile(backend, step, options), .tensors = {}, .sizes = sizes};
        keep(results, made.step.results());
        made.tensors = std::move(tensors);
        return made;
    }
};

/// Three layers, ReLU between them, cross-entropy, SGD with momentum.
TrainStep mlp(Making make) {
    const int64_t batch = make.size("batch"), in = make.size("inputs"), wide = make.size("hidden");
    const int64_t classes = make.size("classes");
    const nn::Tensor x = make.data("x", {batch, in}), labels = make.labels("labels", batch, classes);
    const nn::Linear first(make.backend, in, wide, make.seed), second(make.backend, wide, wide, make.seed + 1),
        last(make.backend, wide, classes, make.seed + 2);
    const auto parameters = nn::joined({first.parameters(), second.parameters(), last.parameters()});
    make.keep({"0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"}, parameters);
    nn::Sgd sgd(parameters, 0.1, 0.9);
    return make.compiled(
        [&] {
            nn::Tensor loss = nn::cross_entropy(last(nn::relu(second(nn::relu(first(x))))), labels);
            nn::backward(loss);
            sgd.step();
            return std::vector{loss};
        },
        {"loss"});
}

/// x + down(gelu(up(layer_norm(x)))), its mean squared error, gradients also of x, AdamW.
TrainStep feed_forward(Making make) {
    const int64_t rows = make.size("tokens"), width = make.size("width"), hidden = make.size("hidden");
    const nn::Tensor x = make.data("x", {rows, width}).set_requires_grad(), goal = make.data("goal", {rows, width});
    const nn::LayerNorm norm(make.backend, {width});
    const nn::Linear up(make.backend, width, hidden, make.seed), down(make.backend, hidden, width, make.seed + 1);
    const auto parameters = nn::joined({norm.parameters(), up.parameters(), down.parameters()});
    nn::AdamW adamw =
        make.adamw({"norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "down.bias"}, parameters);
    return make.compiled(
        [&] {
            nn::Tensor y = nn::add(x, down(nn::gelu(up(norm(x)))));
            nn::Tensor loss = nn::mse_loss(y, goal);
            nn::backward(loss);
            adamw.step();
            return std::vector{loss, x.grad()};
        },
        {"loss", "x.grad"});
}

/// A block of GPT-2 (Radford et al. 2019): x + out(attention(qkv(norm(x)))), then a feed-forward block of that; mean
/// squared error, gradients also of x, AdamW. Tokens are rows, those of a sequence one behind the other.
TrainStep transformer(Making make) {
    const int64_t batch = make.size("batch"), length = make.size("length"), heads = make.size("heads");
    const int64_t width = make.size("width"), hidden = make.size("hidden"), rows = batch * length;
    const nn::Tensor x = make.data("x", {rows, width}).set_requires_grad(), goal = make.data("goal", {rows, width});
    const nn::LayerNorm norm1(make.backend, {width}), norm2(make.backend, {width});
    const nn::Linear qkv(make.backend, width, 3 * width, make.seed), out(make.backend, width, width, make.seed + 1),
        up(make.backend, width, hidden, make.seed + 2), down(make.backend, hidden, width, make.seed + 3);
    const auto parameters = nn::joined({norm1.parameters(), qkv.parameters(), out.parameters(), norm2.parameters(),
                                        up.parameters(), down.parameters()});
    nn::AdamW adamw = make.adamw({"norm1.weight", "norm1.bias", "qkv.weight", "qkv.bias", "out.weight", "out.bias",
                                  "norm2.weight", "norm2.bias", "up.weight", "up.bias", "down.weight", "down.bias"},
                                 parameters);
    auto attend = [&](const nn::Tensor& tokens) {
        const nn::Tensor all = nn::reshape(qkv(tokens), {batch, length, 3, heads, -1});
        auto part = [&](int64_t n) {
            return nn::reshape(nn::slice(all, 2, n, n + 1), {batch, length, heads, width / heads});
        };
        return out(nn::reshape(nn::attention(part(0), part(1), part(2), {.causal = true}), {rows, width}));
    };
    return make.compiled(
        [&] {
            const nn::Tensor y = nn::add(x, attend(norm1(x)));
            const nn::Tensor z = nn::add(y, down(nn::gelu(up(norm2(y)))));
            nn::Tensor loss = nn::mse_loss(z, goal);
            nn::backward(loss);
            adamw.step();
            return std::vector{loss, x.grad()};
        },
        {"loss", "x.grad"});
}

/// relu(x + norm(conv(relu(norm(conv(x)))))), 3 x 3 each without biases, as ResNet's basic block; mean squared error,
/// SGD. Images and filters in `layout`; moments are of channels, last.
TrainStep residual(Making make, nn::Layout layout) {
    const int64_t images = make.size("images"), extent = make.size("extent"), channels = make.size("channels");
    const bool first_channels = layout == nn::Layout::ChannelsFirst;
    const auto shape = schedules::in_layout<int64_t>(layout, {images, extent, extent, channels});
    const nn::Tensor x = make.data("x", shape).set_requires_grad(), goal = make.data("goal", shape);
    const nn::ConvolutionOptions same{.padding = {1}, .layout = layout};
    const double bound = 1 / std::sqrt(9.0 * static_cast<double>(channels));
    auto filters = [&](uint64_t seed) {
        const auto taps = schedules::in_layout<int64_t>(layout, {channels, 3, 3, channels});
        return nn::uniform_parameter(make.backend, taps, bound, seed, "filters");
    };
    const nn::Tensor first = filters(make.seed), second = filters(make.seed + 1);
    const nn::BatchNorm norm1(make.backend, channels), norm2(make.backend, channels);
    const auto parameters = nn::joined({{first}, norm1.parameters(), {second}, norm2.parameters()});
    make.keep({"conv1.weight", "norm1.weight", "norm1.bias", "conv2.weight", "norm2.weight", "norm2.bias"}, parameters);
    nn::Sgd sgd(parameters, 0.1, 0.9);
    auto convolved = [&](const nn::Tensor& images, const nn::Tensor& weight, const nn::BatchNorm& norm) {
        const nn::Tensor y = nn::conv2d(images, weight, {}, same);
        if (!first_channels) return norm(y);
        return nn::permute(norm(nn::permute(y, {0, 2, 3, 1})), {0, 3, 1, 2});
    };
    return make.compiled(
        [&] {
            nn::Tensor y = nn::relu(nn::add(x, convolved(nn::relu(convolved(x, first, norm1)), second, norm2)));
            nn::Tensor loss = nn::mse_loss(y, goal);
            nn::backward(loss);
            sgd.step();
            return std::vector{loss, x.grad()};
        },
        {"loss", "x.grad"});
}

TrainStep residual_last(Making make) {
    return residual(std::move(make), nn::Layout::ChannelsLast);
}

TrainStep residual_first(Making make) {
    return residual(std::move(make), nn::Layout::ChannelsFirst);
}

struct Step {
    TrainStep (*make)(Making);
    Sizes sizes;
};

const std::map<std::string, Step>& steps() {
    static const std::map<std::string, Step> all{
        {"mlp", {mlp, {{"batch", 128}, {"inputs", 784}, {"hidden", 512}, {"classes", 10}}}},
        {"feed_forward", {feed_forward, {{"tokens", 32768}, {"width", 768}, {"hidden", 3072}}}},
        {"transformer",
         {transformer, {{"batch", 32}, {"length", 1024}, {"width", 768}, {"heads", 12}, {"hidden", 3072}}}},
        {"residual", {residual_last, {{"images", 256}, {"extent", 56}, {"channels", 64}}}},
        {"residual_nchw", {residual_first, {{"images", 256}, {"extent", 56}, {"channels", 64}}}},
    };
    return all;
}

TrainStep made(const TrainStepRequest& request, const std::shared_ptr<Device>& device, PlannedAlone* alone) {
    const auto found = steps().find(request.step);
    if (found == steps().end()) {
        std::vector<std::string> names;
        for (const auto& [name, step] : steps()) names.push_back(name);
        throw_error(Error, "no step named '{}'; there are [{}]", request.step, fmt::join(names, ", "));
    }
    Making make{.backend = std::make_shared<nn::Backend>(device),
                .sizes = found->second.sizes,
                .seed = request.seed,
                .options = {.mixed = {.values = request.values}, .branches = request.branches},
                .alone = alone,
                .tensors = {}};
    for (const auto& [name, size] : request.sizes) {
        const auto known = make.sizes.find(name);
        if (known == make.sizes.end())
            throw_error(Error, "the step '{}' has no size '{}'; it has {}", request.step, name, make.sizes);
        known->second = size;
    }
    return found->second.make(std::move(make));
}

}  // namespace

const std::map<std::string, std::map<std::string, int64_t>>& train_steps() {
    static const auto all = [] {
        std::map<std::string, Sizes> sizes;
        for (const auto& [name, step] : steps()) sizes[name] = step.sizes;
        return sizes;
    }();
    return all;
}

TrainStep make_train_step(const TrainStepRequest& request, const std::shared_ptr<Device>& device) {
    return made(request, device, nullptr);
}

StepPlan plan_train_step(const TrainStepRequest& request, const std::shared_ptr<Device>& device, const Target& target) {
    PlannedAlone alone{.target = target};
    made(request, device, &alone);
    return std::move(alone.plan);
}

}  // namespace tw::bench

// Networks that PyTorch has trained from the same weights with the same data (scripts/make_reference_losses.py wrote
// how that went): losses of 20 steps, gradients of the first one, and what becomes of parameters, beside its float64.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/convolution.h"
#include "ops/layers.h"
#include "ops/modules/multi_head_attention.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/persistence/safetensors.h"
#include "ops/pooling.h"
#include "ops/step/compile_step.h"
#include "ops/views.h"
#include "runtime/driver/driver.h"

namespace tw::nn {
namespace {

// What may be wrong, as in bench/harness/step_peers.py: so many times what PyTorch errs by in the same type, and a
// rounding, which is no error of either side. The emulator errs by a third of that in f32, by two thirds in bf16, where
// most of it is ReLUs that pass or not as rounding says.
constexpr double loosest = 1.5, rounding_f32 = 1e-5, rounding_bf16 = 1.0 / 256;

std::vector<double> numbers(const HostArray& array) {
    std::vector<double> all;
    std::vector<int64_t> at(array.shape.size());
    do all.push_back(array.at(at).real);
    while (advance(at, array.shape));
    return all;
}

/// The length of the difference relative to that of the exact one, or of what it has changed of the start.
double distance(const HostArray& got, const HostArray& exact, const HostArray* start = nullptr) {
    const std::vector<double> g = numbers(got), e = numbers(exact),
                              s = start ? numbers(*start) : std::vector<double>(e.size());
    double difference = 0, length = 0;
    for (size_t k = 0; k < e.size(); ++k) {
        difference += (g.at(k) - e[k]) * (g.at(k) - e[k]);
        length += (e[k] - s.at(k)) * (e[k] - s.at(k));
    }
    return std::sqrt(difference / length);
}

/// The largest of all steps, relative.
double distance(const std::vector<double>& losses, const std::vector<double>& exact) {
    double most = 0;
    for (size_t k = 0; k < exact.size(); ++k) {
        const double away = std::abs(losses.at(k) - exact[k]) / exact[k];
        if (away > most || std::isnan(away)) most = away;  // and a NaN stays
    }
    return most;
}

/// How a network is trained: call by call, or by a step as one graph, in which products may read rounded values.
struct Way {
    bool compiled = true;
    Type values = f32;
    bool gradients = true;  ///< of the first step are compared, too
};

/// What PyTorch has made, and data where networks read them.
class Reference {
public:
    explicit Reference(const std::string& name)
        : backend(std::make_shared<Backend>(best_device().device)), file_(existing(name)) {
        x = Tensor(backend, file_.entry("x").type, batch_shape("x"), "x");
        labels = Tensor(backend, i32, batch_shape("labels"), "labels");
    }

    /// Trains the network from its weights.
    template <class Network>
    void expect_like(const Network& network, Optimizer& optimizer, const Way& way) const {
        SCOPED_TRACE(fmt::format("{}, {}", way.compiled ? "compiled" : "called", name_of(way.values)));
        load(network);
        const auto step = [&] { return made_by_step(network, network(x), optimizer, way.gradients); };
        std::optional<CompiledStep> compiled;
        if (way.compiled) compiled = compile(backend, step, {.mixed = {.values = way.values}});
        const std::vector<double> exact = numbers(file_.array("losses"));
        std::vector<double> losses;
        for (size_t n = 0; n < exact.size(); ++n) {
            draw("x", x, n);
            draw("labels", labels, n);
            if (compiled) compiled->run();
            const std::vector<Tensor> made = compiled ? compiled->results() : step();
            losses.push_back(made[0].to_host().at({}).real);
            if (n == 0 && way.gradients) expect_gradients(network, made, way.values);
        }
        const std::vector<double> theirs = numbers(file_.array(fmt::format("{}.losses", name_of(way.values))));
        EXPECT_LE(distance(losses, exact), allowed(way.values, distance(theirs, exact))) << "losses";
        if (way.values == f32) expect_final(network);
    }

    std::shared_ptr<Backend> backend;
    Tensor x, labels;

private:
    static std::string existing(const std::string& name) {
        const std::string path = "tests/ops/reference/" + name + ".safetensors";
        if (!std::filesystem::exists(path))
            throw std::runtime_error(path +
                                     " is missing: scripts/make_reference_losses.py tests/ops/reference, with "
                                     "PyTorch, makes it");
        return path;
    }
    std::vector<int64_t> batch_shape(const std::string& name) const {
        const std::vector<int64_t>& shape = file_.entry(name).shape;
        return {shape.begin() + 1, shape.end()};
    }
    /// The batch of the step.
    void draw(const std::string& name, const Tensor& tensor, size_t step) const {
        const std::span<const std::byte> all = file_.bytes(name);
        const size_t batches = static_cast<size_t>(file_.entry(name).shape[0]), bytes = all.size() / batches;
        HostArray batch = host_array(tensor.type(), tensor.shape());
        std::ranges::copy(all.subspan(step % batches * bytes, bytes), batch.bytes.begin());
        tensor.copy_from_host(batch);
    }
    void load(const Module& network) const {
        for (const NamedTensors& all : {network.named_parameters(), network.named_buffers()})
            for (const auto& [name, tensor] : all) tensor.copy_from_host(file_.array("start." + name));
    }
    /// The loss, and gradients in the order of parameters.
    std::vector<Tensor> made_by_step(const Module& network, const Tensor& logits, Optimizer& optimizer,
                                     bool gradients) const {
        const Tensor loss = cross_entropy(logits, labels);
        backward(loss);
        std::vector<Tensor> made{loss};
        if (gradients)
            for (const Tensor& parameter : network.parameters()) made.push_back(parameter.grad());
        optimizer.step();
        return made;
    }
    static double allowed(Type values, double peer) {
        return loosest * peer + (values == f32 ? rounding_f32 : rounding_bf16);
    }
    double peer(Type values, const std::string& what) const {
        return file_.array(fmt::format("{}.{}", name_of(values), what)).at({}).real;
    }
    /// `made` has the loss in front.
    void expect_gradients(const Module& network, const std::vector<Tensor>& made, Type values) const {
        const NamedTensors parameters = network.named_parameters();
        for (size_t k = 0; k < parameters.size(); ++k) {
            const std::string& name = parameters[k].first;
            EXPECT_LE(distance(made.at(k + 1).to_host(), file_.array("gradient." + name)),
                      allowed(values, peer(values, "gradient_error." + name)))
                << "the gradient of " << name;
        }
    }
    void expect_final(const Module& network) const {
        for (const NamedTensors& all : {network.named_parameters(), network.named_buffers()})
            for (const auto& [name, tensor] : all) {
                const HostArray start = file_.array("start." + name);
                EXPECT_LE(distance(tensor.to_host(), file_.array("final." + name), &start),
                          allowed(f32, peer(f32, "final_error." + name)))
                    << name << " behind the last step";
            }
    }

    Safetensors file_;
};

struct Mlp : Module {
    Linear first, second, output;
    explicit Mlp(const std::shared_ptr<Backend>& backend)
        : first(register_module("first", Linear(backend, 32, 32, 1))),
          second(register_module("second", Linear(backend, 32, 32, 2))),
          output(register_module("output", Linear(backend, 32, 16, 3))) {}
    Tensor operator()(const Tensor& x) const { return output(relu(second(relu(first(x))))); }
};

TEST(ReferenceLosses, OfAPerceptron) {
    const Reference reference("mlp");
    for (const Way& way : {Way{.compiled = false}, Way{}, Way{.values = bf16}}) {
        const Mlp network(reference.backend);
        Sgd sgd(network.parameters(), /*rate=*/0.2, /*momentum=*/0.9);
        reference.expect_like(network, sgd, way);
    }
}

/// A convolution without a bias, 3 x 3.
struct Filters : Module {
    Tensor weight;
    Filters(const std::shared_ptr<Backend>& backend, int64_t in, int64_t out)
        : weight(register_parameter("weight", uniform_parameter(backend, {out, 3, 3, in}, 1, 1, "weight"))) {}
    Tensor operator()(const Tensor& x) const { return conv2d(x, weight, {}, {.padding = {1}}); }
};

struct Convolutions : Module {
    Filters conv1, conv2;
    BatchNorm norm1, norm2;
    Linear output;
    explicit Convolutions(const std::shared_ptr<Backend>& backend)
        : conv1(register_module("conv1", Filters(backend, 3, 8))),
          conv2(register_module("conv2", Filters(backend, 8, 16))),
          norm1(register_module("norm1", BatchNorm(backend, 8))),
          norm2(register_module("norm2", BatchNorm(backend, 16))),
          output(register_module("output", Linear(backend, 64, 10, 1))) {}
    Tensor operator()(const Tensor& x) const {
        const Tensor edges = max_pool(relu(norm1(conv1(x))), {.window = {2}});
        return output(flatten(max_pool(relu(norm2(conv2(edges))), {.window = {2}})));
    }
};

/// Gradients are those of calls: a compiled step returns none of two batch norms, as they would have one name.
TEST(ReferenceLosses, OfAConvolutionNet) {
    const Reference reference("convolutions");
    for (const Way& way : {Way{.compiled = false}, Way{.gradients = false}}) {
        const Convolutions network(reference.backend);
        AdamW adamw(network.parameters(), 0.01, {.epsilon = 1e-4, .weight_decay = 0.05});
        reference.expect_like(network, adamw, way);
    }
}

struct Block : Module {
    LayerNorm norm1, norm2;
    MultiHeadAttention attention;
    Linear up, down;
    Block(const std::shared_ptr<Backend>& backend, int64_t width)
        : norm1(register_module("norm1", LayerNorm(backend, {width}))),
          norm2(register_module("norm2", LayerNorm(backend, {width}))),
          attention(register_module("attention", MultiHeadAttention(backend, width, 2, 1, {.causal = true}))),
          up(register_module("up", Linear(backend, width, 2 * width, 2))),
          down(register_module("down", Linear(backend, 2 * width, width, 3))) {}
    Tensor operator()(const Tensor& x) const {
        const Tensor y = add(x, attention(norm1(x)));
        return add(y, down(gelu(up(norm2(y)))));
    }
};

struct Transformer : Module {
    static constexpr int64_t batch = 2, length = 16, width = 16, kinds = 16;
    Tensor characters, places;
    ModuleList<Block> blocks;
    LayerNorm norm;
    Linear output;
    explicit Transformer(const std::shared_ptr<Backend>& backend)
        : characters(register_parameter("characters", uniform_parameter(backend, {kinds, width}, 1, 1, "characters"))),
          places(register_parameter("places", uniform_parameter(backend, {length, width}, 1, 2, "places"))),
          blocks(register_module("blocks", ModuleList<Block>())),
          norm(register_module("norm", LayerNorm(backend, {width}))),
          output(register_module("output", Linear(backend, width, kinds, 3))) {
        for (int n = 0; n < 2; ++n) blocks.push_back(Block(backend, width));
    }
    Tensor operator()(const Tensor& x) const {
        Tensor y = reshape(embedding(characters, x, places), {batch, length, width});
        for (const Block& block : blocks) y = block(y);
        return reshape(output(norm(y)), {batch * length, kinds});
    }
};

TEST(ReferenceLosses, OfATransformer) {
    const Reference reference("transformer");
    for (const Type values : {f32, bf16}) {
        const Transformer network(reference.backend);
        AdamW adamw(network.parameters(), 0.01, {.beta2 = 0.98, .epsilon = 1e-4, .weight_decay = 0.1, .max_norm = 0.5});
        reference.expect_like(network, adamw, {.values = values});
    }
}

}  // namespace
}  // namespace tw::nn

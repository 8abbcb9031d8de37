// Modules: names of parameters and buffers, modes, checkpoints by names, and the layers that came with them.
#include <gmock/gmock.h>

#include "ops/convolution.h"
#include "ops/layers.h"
#include "ops/modules/dropout.h"
#include "ops/modules/multi_head_attention.h"
#include "ops/modules/sequential.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/persistence/checkpoint.h"
#include "ops/step/compile_step.h"
#include "tests/ops/modules/slopes.h"
#include "tests/ops/persistence/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

using testing::ElementsAre;

std::vector<std::string> names_of(const NamedTensors& tensors) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) names.push_back(name);
    return names;
}

struct Block : Module {
    LayerNorm norm;
    MultiHeadAttention attention;
    Sequential mlp;
    Block(const std::shared_ptr<Backend>& backend, int64_t width, uint64_t seed)
        : norm(register_module("norm", LayerNorm(backend, {width}))),
          attention(register_module("attention", MultiHeadAttention(backend, width, 2, seed, {.causal = true}))),
          mlp(register_module(
              "mlp", Sequential{Linear(backend, width, 2 * width, seed + 10), gelu, Dropout(backend, 0.25, seed),
                                Linear(backend, 2 * width, width, seed + 11)})) {}
    Tensor operator()(const Tensor& x) const {
        const Tensor y = add(x, attention(norm(x)));
        return add(y, mlp(y));
    }
};

struct CharacterNetwork : Module {
    Embedding table;
    ModuleList<Block> blocks;
    BatchNorm last;
    Tensor tied;
    CharacterNetwork(const std::shared_ptr<Backend>& backend, uint64_t seed)
        : table(register_module("table", Embedding(backend, 5, 4, seed))),
          blocks(register_module("blocks", ModuleList<Block>())),
          last(register_module("last", BatchNorm(backend, 4))),
          tied(register_parameter("tied", table.parameters()[0])) {
        for (uint64_t k = 0; k < 2; ++k) blocks.push_back(Block(backend, 4, seed + 20 * (k + 1)));
    }
    Tensor operator()(const Tensor& ids) const {
        Tensor x = table(ids);
        for (const Block& block : blocks) x = block(x);
        return last(x);
    }
};

class Modules : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    Tensor leaf(const std::vector<int64_t>& shape, const Values& values, const std::string& name) const {
        return of_values(backend_, shape, values, name).set_requires_grad();
    }
    Tensor ids(const std::vector<int64_t>& shape, const std::vector<int32_t>& values) const {
        Tensor tensor(backend_, i32, shape, "ids");
        tensor.data().write(values);
        return tensor;
    }
    std::shared_ptr<Backend> backend_;
    FileFolder folder_;
};
TW_ON_EACH_DEVICE(Modules);

TEST_P(Modules, NameWhatTheyAreMadeOf) {
    const CharacterNetwork network(backend_, 1);
    EXPECT_THAT(
        names_of(network.named_parameters()),
        ElementsAre("tied", "blocks.0.norm.weight", "blocks.0.norm.bias", "blocks.0.attention.qkv.weight",
                    "blocks.0.attention.qkv.bias", "blocks.0.attention.out.weight", "blocks.0.attention.out.bias",
                    "blocks.0.mlp.0.weight", "blocks.0.mlp.0.bias", "blocks.0.mlp.3.weight", "blocks.0.mlp.3.bias",
                    "blocks.1.norm.weight", "blocks.1.norm.bias", "blocks.1.attention.qkv.weight",
                    "blocks.1.attention.qkv.bias", "blocks.1.attention.out.weight", "blocks.1.attention.out.bias",
                    "blocks.1.mlp.0.weight", "blocks.1.mlp.0.bias", "blocks.1.mlp.3.weight", "blocks.1.mlp.3.bias",
                    "last.weight", "last.bias"));  // the table is the tied one
    EXPECT_THAT(names_of(network.named_buffers()),
                ElementsAre("blocks.0.mlp.2.seed", "blocks.0.mlp.2.calls", "blocks.1.mlp.2.seed",
                            "blocks.1.mlp.2.calls", "last.running_mean", "last.running_var"));
    const std::vector<Tensor> all = network.parameters();
    ASSERT_EQ(all.size(), 23u);
    for (size_t k = 0; k < all.size(); ++k) {
        EXPECT_TRUE(all[k].same(network.named_parameters()[k].second));
        EXPECT_TRUE(all[k].requires_grad());
    }
    for (const auto& [name, buffer] : network.named_buffers()) EXPECT_FALSE(buffer.requires_grad()) << name;
    Module plain;
    const Tensor table(backend_, f32, {2, 3}, "table");
    EXPECT_TRUE(plain.register_parameter("table", table).same(table));
    EXPECT_TRUE(table.requires_grad());
    EXPECT_THAT(names_of(Conv2d(backend_, 2, 4, {3}, 1).named_parameters()), ElementsAre("weight", "bias"));
    EXPECT_THAT(names_of(GroupNorm(backend_, 2, 4).named_parameters()), ElementsAre("weight", "bias"));
    EXPECT_THAT(names_of(RMSNorm(backend_, 4).named_parameters()), ElementsAre("weight"));
}

/// A copy of a handle is the same module, of a list and a sequence too; modes reach all that is inside.
TEST_P(Modules, AreHandlesWithModes) {
    CharacterNetwork network(backend_, 1);
    const CharacterNetwork copy = network;
    network.blocks.push_back(Block(backend_, 4, 90));
    EXPECT_EQ(copy.blocks.size(), 3u);
    EXPECT_EQ(copy.parameters().size(), 33u);
    network.blocks[2].attention.eval();
    EXPECT_FALSE(copy.blocks[2].attention.is_training());
    EXPECT_TRUE(copy.blocks[2].mlp.is_training());
    copy.eval();
    EXPECT_FALSE(network.is_training() || network.blocks[1].mlp.is_training() || network.last.is_training());
    network.train();
    EXPECT_TRUE(network.is_training() && copy.blocks[1].mlp.is_training() && copy.blocks[2].attention.is_training());
}

TEST_P(Modules, BatchNormInfersInEvaluation) {
    const BatchNorm norm(backend_, 3);
    const Tensor x = of_values(backend_, {8, 3}, random_values(24, 5), "x");
    norm(x);
    const Values moved = values_of(norm.running_mean());
    EXPECT_NE(moved, Values(3, 0.0));
    norm.eval();
    EXPECT_EQ(values_of(norm(x)), values_of(norm.infer(x)));
    EXPECT_EQ(values_of(norm.running_mean()), moved);
    norm.train();
    EXPECT_NE(values_of(norm(x)), values_of(norm.infer(x)));
}

/// Names of the file are those of the module, buffers too; another module of other values takes them all.
TEST_P(Modules, AreKeptByName) {
    const CharacterNetwork saved(backend_, 1), loaded(backend_, 500);
    const Tensor x = ids({3, 4}, {0, 1, 2, 3, 4, 0, 3, 3, 1, 2, 4, 4});
    saved(x);  // counts and running moments
    Checkpoint().add("", saved).save(folder_ / "plain");
    Checkpoint().add("network", saved).save(folder_ / "named");
    EXPECT_TRUE(Safetensors(folder_ / "plain").contains("blocks.1.attention.qkv.weight"));
    EXPECT_TRUE(Safetensors(folder_ / "named").contains("network.blocks.0.mlp.2.calls"));
    EXPECT_EQ(Safetensors(folder_ / "named").entries().size(), 29u);
    Checkpoint().add("network", loaded).load(folder_ / "named");
    for (const Module& network : {static_cast<const Module&>(saved), static_cast<const Module&>(loaded)})
        network.eval();
    EXPECT_EQ(values_of(loaded(x)), values_of(saved(x)));
    saved.train();
    loaded.train();
    EXPECT_EQ(values_of(loaded(x)), values_of(saved(x)));  // drops the same elements
    EXPECT_ERROR(Checkpoint().add("network", saved.blocks[0]).load(folder_ / "named"),
                 "'network.norm.weight' f32 [4] is not in the file");
    EXPECT_ERROR(Checkpoint().add("n", saved).add("n", saved), "Checkpoint: 'n.tied' has been added before");
}

TEST_P(Modules, SequencesAreTheirCalls) {
    const Linear first(backend_, 6, 8, 1), second(backend_, 8, 3, 2);
    Sequential network{first, relu, [](const Tensor& x) { return add(x, x); }};
    network.push_back(second);
    const Tensor x = of_values(backend_, {5, 6}, random_values(30, 3), "x");
    const Tensor h = relu(first(x));
    EXPECT_EQ(values_of(network(x)), values_of(second(add(h, h))));
    EXPECT_THAT(names_of(network.named_parameters()), ElementsAre("0.weight", "0.bias", "3.weight", "3.bias"));
    EXPECT_EQ(network.size(), 4u);
    EXPECT_EQ(values_of(Sequential()(x)), values_of(x));
    EXPECT_ERROR(network(second(h)), fmt::format("modules_test.cpp:{}: linear: x is [5, 3]", __LINE__));
}

double silu_of(double x) { return x / (1 + std::exp(-x)); }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

TEST_P(Modules, ActivationsHaveTheirSlopes) {
    using Call = Tensor (*)(const Tensor&, std::source_location);
    for (const auto& [call, exact] : {std::pair<Call, double (*)(double)>{silu, silu_of},
                                      {nn::tanh, [](double x) { return std::tanh(x); }},
                                      {sigmoid, sigmoid_of}}) {
        Values x = random_values(35, 1), goal = random_values(35, 2);
        for (double& value : x) value *= 4;
        const Tensor tx = leaf({5, 7}, x, "x");
        const Tensor loss = mse_loss(call(tx, std::source_location::current()), leaf({5, 7}, goal, "goal"));
        backward(loss);
        const auto reference = [&, exact = exact] {
            double total = 0;
            for (size_t e = 0; e < x.size(); ++e) total += std::pow(exact(x[e]) - goal[e], 2) / 35;
            return total;
        };
        EXPECT_NEAR(values_of(loss)[0], reference(), 1e-5);
        expect_near(values_of(tx.grad()), slopes(x, reference), 2e-5, loss.name());
    }
}

TEST_P(Modules, RmsNormAndEmbeddingHaveTheirSlopes) {
    constexpr int64_t Batch = 2, Length = 3, Width = 5, Words = 4;
    Values table = random_values(Words * Width, 1), gain = random_values(Width, 2),
           goal = random_values(Batch * Length * Width, 3);
    const std::vector<int32_t> id{0, 2, 2, 1, 0, 2};  // 3 occurs nowhere
    const Embedding words(backend_, Words, Width, 7);
    const RMSNorm norm(backend_, Width, 1e-3);
    EXPECT_EQ(values_of(norm.parameters()[0]), Values(Width, 1.0));
    for (const double value : values_of(words.parameters()[0])) EXPECT_LT(std::fabs(value), 1 / std::sqrt(5.0));
    words.parameters()[0].data().write(std::vector<float>(table.begin(), table.end()));
    norm.parameters()[0].data().write(std::vector<float>(gain.begin(), gain.end()));
    const Tensor y = norm(words(ids({Batch, Length}, id)));
    EXPECT_EQ(y.shape(), (std::vector<int64_t>{Batch, Length, Width}));
    const Tensor loss = mse_loss(y, of_values(backend_, {Batch, Length, Width}, goal, "goal"));
    backward(loss);
    const auto reference = [&] {
        double total = 0;
        for (size_t n = 0; n < id.size(); ++n) {
            const double* row = &table[static_cast<size_t>(id[n]) * Width];
            double squares = 0;
            for (int64_t j = 0; j < Width; ++j) squares += row[j] * row[j];
            for (int64_t j = 0; j < Width; ++j)
                total += std::pow(row[j] / std::sqrt(squares / Width + 1e-3) * gain[j] - goal[n * Width + j], 2);
        }
        return total / static_cast<double>(goal.size());
    };
    EXPECT_NEAR(values_of(loss)[0], reference(), 1e-5);
    expect_near(values_of(words.parameters()[0].grad()), slopes(table, reference), 3e-5, "table");
    expect_near(values_of(norm.parameters()[0].grad()), slopes(gain, reference), 3e-5, "gain");
    HostArray rows = host_array(bf16, {2, 3});
    fill_uniform(rows, -1, 1, 8);
    const HostArray narrow = rms_norm(Tensor(backend_, rows, "x"), RMSNorm(backend_, 3).parameters()[0]).to_host();
    for (int64_t n = 0; n < 2; ++n)
        for (int64_t j = 0; j < 3; ++j) {
            double squares = 1e-5;
            for (int64_t k = 0; k < 3; ++k) squares += std::pow(rows.at({n, k}).real, 2) / 3;
            EXPECT_NEAR(narrow.at({n, j}).real, rows.at({n, j}).real / std::sqrt(squares), 0.008);
        }
}

struct AttentionCase {
    int64_t heads, heads_of_keys;
    bool causal;
};

/// y = out(attention(..)) of x [batch, length, width], as its formula says. w holds the parameters in their order.
Values attended(const Values& x, const std::vector<Values>& w, int64_t batch, int64_t length, int64_t width,
                const AttentionCase& of) {
    const int64_t depth = width / of.heads, all = width + 2 * of.heads_of_keys * depth;
    const auto linear_of = [&](const Values& in, const Values& weight, const Values& bias, int64_t out) {
        Values y;
        for (int64_t n = 0; n < batch * length; ++n)
            for (int64_t o = 0; o < out; ++o) {
                y.push_back(bias[o]);
                for (int64_t k = 0; k < width; ++k) y.back() += in[n * width + k] * weight[o * width + k];
            }
        return y;
    };
    const Values qkv = linear_of(x, w[0], w[1], all);
    Values mixed(static_cast<size_t>(batch * length * width), 0.0);
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t h = 0; h < of.heads; ++h)
            for (int64_t i = 0; i < length; ++i) {
                const int64_t of_keys = h / (of.heads / of.heads_of_keys);
                const double *q = &qkv[(b * length + i) * all + h * depth],
                             *k = &qkv[b * length * all + width + of_keys * depth], *v = k + of.heads_of_keys * depth;
                Values share;
                double total = 0;
                for (int64_t n = 0; n < (of.causal ? i + 1 : length); ++n) {
                    double score = 0;
                    for (int64_t d = 0; d < depth; ++d) score += q[d] * k[n * all + d];
                    share.push_back(std::exp(score / std::sqrt(static_cast<double>(depth))));
                    total += share.back();
                }
                for (size_t n = 0; n < share.size(); ++n)
                    for (int64_t d = 0; d < depth; ++d)
                        mixed[(b * length + i) * width + h * depth + d] += share[n] / total * v[n * all + d];
            }
    return linear_of(mixed, w[2], w[3], width);
}

TEST_P(Modules, AttentionOfHeadsIsItsFormula) {
    constexpr int64_t Batch = 2, Length = 3, Width = 8;
    for (const AttentionCase& of : {AttentionCase{2, 2, false}, {4, 2, true}}) {
        SCOPED_TRACE(of.heads);
        const MultiHeadAttention layer(backend_, Width, of.heads, 3,
                                       {.causal = of.causal, .heads_of_keys = of.heads_of_keys % of.heads});
        Values x = random_values(Batch * Length * Width, 1), goal = random_values(Batch * Length * Width, 2);
        std::vector<Values> w;
        for (const Tensor& parameter : layer.parameters()) w.push_back(values_of(parameter));
        const Tensor tx = leaf({Batch, Length, Width}, x, "x"),
                     tgoal = of_values(backend_, {Batch, Length, Width}, goal, "goal");
        const auto step = [&] {
            const Tensor loss = mse_loss(layer(tx), tgoal);
            backward(loss);
            std::vector<Tensor> results{loss, tx.grad()};
            for (const Tensor& parameter : layer.parameters()) results.push_back(parameter.grad());
            return results;
        };
        const auto reference = [&] {
            const Values y = attended(x, w, Batch, Length, Width, of);
            double total = 0;
            for (size_t e = 0; e < y.size(); ++e) total += std::pow(y[e] - goal[e], 2);
            return total / static_cast<double>(y.size());
        };
        const CompiledStep compiled = compile(backend_, step);
        compiled.run();
        for (const std::vector<Tensor>& results : {compiled.results(), step()}) {
            EXPECT_NEAR(values_of(results[0])[0], reference(), 1e-5);
            expect_near(values_of(results[1]), slopes(x, reference), 3e-5, "x");
            for (size_t p = 0; p < w.size(); ++p)
                expect_near(values_of(results[2 + p]), slopes(w[p], reference), 3e-5, results[2 + p].name());
        }
    }
}

/// With 16 bits it is the kernel of attention, which reads q, k and v where the projection wrote them.
TEST_P(Modules, AttentionOfHeadsCopiesNothing) {
    const MultiHeadAttention layer(backend_, 16, 2, 3, {.causal = true, .heads_of_keys = 1});
    const Tensor x = of_values(backend_, {1, 16, 16}, random_values(16 * 16, 1), "x");
    const auto step = [&] {
        const Tensor loss = mse_loss(layer(x), x);
        backward(loss);
        return std::vector{loss, layer.parameters()[0].grad()};
    };
    const CompiledStep mixed = compile(backend_, step, {.mixed = {.values = bf16}});
    int own = 0;
    for (const StepGroup& group : mixed.plan().groups) {
        if (group.operations[0].find("attention") == std::string::npos) continue;
        ++own;
        if (group.operations[0] != "causal attention") continue;
        ASSERT_EQ(group.reads.size(), 1U);
        EXPECT_EQ(mixed.plan().values[static_cast<size_t>(group.reads[0])].name, "linear");
        EXPECT_EQ(group.selection->program.kernels().size(), 1U) << "operands are copied";
    }
    EXPECT_EQ(own, 2) << mixed.plan().text();
    mixed.run();
    const std::vector<Tensor> exact = step();
    EXPECT_NEAR(values_of(mixed.results()[0])[0], values_of(exact[0])[0], 0.02);
}

/// All of it at once, as one graph and by calls.
TEST_P(Modules, NetworksTrain) {
    const CharacterNetwork compiled(backend_, 1), called(backend_, 1);
    const Tensor x = ids({3, 4}, {0, 1, 2, 3, 4, 0, 3, 3, 1, 2, 4, 4}),
                 goal = of_values(backend_, {3, 4, 4}, random_values(48, 2), "goal");
    Sgd of_compiled({compiled.parameters()}, 0.05), of_called({called.parameters()}, 0.05);
    const auto step = [&](const CharacterNetwork& network, Sgd& sgd) {
        const Tensor loss = mse_loss(network(x), goal);
        backward(loss);
        sgd.step();
        return std::vector{loss};
    };
    const CompiledStep graph = compile(backend_, [&] { return step(compiled, of_compiled); });
    for (int k = 0; k < 3; ++k) {
        graph.run();
        const double expected = values_of(step(called, of_called)[0])[0];
        EXPECT_NEAR(values_of(graph.results()[0])[0], expected, 1e-4) << k;
    }
    for (const auto& [name, buffer] : compiled.named_buffers())
        if (name.ends_with("calls")) {
            EXPECT_EQ(buffer.data().read<uint32_t>()[0], 3u) << name;
        }
}

TEST_P(Modules, RefuseNamesAndShapes) {
    Module module, other;
    const Tensor x(backend_, f32, {2, 3}, "x"), number(backend_, i32, {2}, "number");
    module.register_buffer("b", x);
    const int line = __LINE__ + 1;
    EXPECT_ERROR(module.register_buffer("", x),
                 fmt::format("modules_test.cpp:{}: Module: '' is no name; give one that is not empty", line));
    EXPECT_ERROR(module.register_parameter("a.b", x), "Module: 'a.b' is no name");
    EXPECT_ERROR(module.register_module("b", other), "Module: 'b' has been registered before");
    EXPECT_ERROR(module.register_parameter("p", Tensor()), "Module: parameter 'p' is an undefined tensor; make it");
    EXPECT_ERROR(module.register_buffer("p", Tensor()), "Module: buffer 'p' is an undefined tensor; make it first");
    EXPECT_ERROR(module.register_parameter("p", number), "gradients are computed for floats only");
    module.register_module("m", other);
    EXPECT_ERROR(other.register_module("n", module), "Module: 'n' is this module, or has it inside");
    EXPECT_EQ(module.named_parameters().size(), 0u);
    EXPECT_ERROR(rms_norm(x, x), "rms_norm: x is f32 [2, 3], the gain [2, 3]; give floats [..., width] and [width]");
    EXPECT_ERROR(embedding(x, x), "embedding: the table is [2, 3], ids are f32 [2, 3]; give [words, width] and i32");
    EXPECT_ERROR(MultiHeadAttention(backend_, 6, 4, 1), "a width of 6, 4 heads, 4 of keys; give heads that divide");
    EXPECT_ERROR(MultiHeadAttention(backend_, 8, 2, 1)(x), "MultiHeadAttention: x is [2, 3]; give [batch, length, 8]");
}

/// Frozen ones keep their bits whatever the optimizer does besides, and their states; so do those around them theirs.
TEST_P(Modules, FrozenParametersStay) {
    const Linear first(backend_, 4, 4, 1), second(backend_, 4, 4, 2);
    const Sequential network{first, nn::tanh, second};
    const Tensor x = of_values(backend_, {8, 4}, random_values(32, 3), "x");
    AdamW adam({network.parameters()}, 0.1, {.weight_decay = 0.1, .max_norm = 0.5});
    Sgd sgd({network.parameters()}, 0.1, {.momentum = 0.9, .weight_decay = 0.1});
    const auto step = [&] {
        backward(mse_loss(network(x), x));
        adam.step();
        sgd.step();
    };
    const auto all_values = [&](const Module& of) {
        std::vector<Values> values;
        for (const Tensor& parameter : of.parameters()) values.push_back(values_of(parameter));
        return values;
    };
    step();
    first.set_requires_grad(false);
    EXPECT_FALSE(first.parameters()[0].grad().defined());
    const auto frozen = all_values(first), moving = all_values(second);
    const Values state = values_of(adam.states()[0]);
    step();
    EXPECT_FALSE(first.parameters()[0].grad().defined());
    EXPECT_EQ(all_values(first), frozen);
    EXPECT_EQ(values_of(adam.states()[0]), state);
    EXPECT_NE(all_values(second), moving);
    network.set_requires_grad(false);
    EXPECT_ERROR(adam.step(),
                 "AdamW: all parameters are frozen, and none is updated; call set_requires_grad() on some");
    EXPECT_ERROR(backward(mse_loss(network(x), x)), "depends on no tensor that requires a gradient");
    network.set_requires_grad();
    EXPECT_ERROR(adam.step(), "has no gradient");
    step();
    EXPECT_NE(all_values(first), frozen);
    EXPECT_ERROR(nn::tanh(first.parameters()[0]).set_requires_grad(false),
                 "set_requires_grad: 'tanh' is made by a call; freeze what that reads, or call under NoGrad");
}

}  // namespace
}  // namespace tw::nn

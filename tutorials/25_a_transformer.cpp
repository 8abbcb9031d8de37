// Tutorial 25: a transformer that learns characters. It reads a text piece by piece, learns to say of each character
// which one comes next, and then writes text of its own.
//
// Tutorial 24 compiled a perceptron's step as one graph; here stands what a language model needs besides: modules with
// names, embeddings, causal attention, AdamW with a schedule of rates, mixed precision, and a checkpoint. On a GPU it
// learns docs/ of this project, on the emulator one sentence.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "ops/layers.h"
#include "ops/modules/multi_head_attention.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/persistence/checkpoint.h"
#include "ops/step/compile_step.h"
#include "ops/views.h"
#include "tutorials/lesson.h"

using namespace tw;

namespace {

std::string read_text(bool whole) {
    if (!whole) return "the rain in spain stays mainly in the plain and the train in maine remains in the main lane ";
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(TILEWRIGHT_DOCUMENTS)) paths.push_back(entry.path());
    std::ranges::sort(paths);
    std::string text;
    for (const auto& path : paths) {
        std::ifstream file(path, std::ios::binary);
        text.append(std::istreambuf_iterator<char>(file), {});
    }
    return text;
}

// Networks know numbers, no letters: a character is its place among those that occur.
struct Text {
    std::string known;
    std::vector<int32_t> numbers;

    explicit Text(const std::string& text) : known(text) {
        std::ranges::sort(known);
        known.erase(std::unique(known.begin(), known.end()), known.end());
        for (char c : text) numbers.push_back(number_of(c));
    }
    int32_t number_of(char c) const { return static_cast<int32_t>(std::ranges::lower_bound(known, c) - known.begin()); }
};

// A block: characters look at those before them (attention), then each is thought about by itself (two layers with a
// GELU between them). Both are added to what was there, so that gradients reach the first block as they are, and both
// read it normed (a transformer with its norms in front, as GPT-2).
//
// What is registered has a name, "blocks.0.attention.qkv.weight": optimizers and checkpoints ask the network for these.
struct Block : nn::Module {
    nn::LayerNorm norm1, norm2;
    nn::MultiHeadAttention attention;
    nn::Linear up, down;

    Block(const std::shared_ptr<nn::Backend>& backend, int64_t width, int64_t heads, uint64_t seed)
        : norm1(register_module("norm1", nn::LayerNorm(backend, {width}))),
          norm2(register_module("norm2", nn::LayerNorm(backend, {width}))),
          attention(
              register_module("attention", nn::MultiHeadAttention(backend, width, heads, seed, {.causal = true}))),
          up(register_module("up", nn::Linear(backend, width, 4 * width, seed + 1))),
          down(register_module("down", nn::Linear(backend, 4 * width, width, seed + 2))) {}

    nn::Tensor operator()(const nn::Tensor& x) const {
        const nn::Tensor y = nn::add(x, attention(norm1(x)));
        return nn::add(y, down(nn::gelu(up(norm2(y)))));
    }
};

struct Sizes {
    int64_t kinds, length, width, heads, blocks;
};

// A character becomes a row of a table, and so does its place in the sequence: their sum goes through the blocks. What
// comes out is turned into a number for each kind of character, the larger the likelier (logits).
struct Network : nn::Module {
    Sizes of;
    nn::Tensor characters, places;
    nn::ModuleList<Block> blocks;
    nn::LayerNorm norm;
    nn::Linear output;

    Network(const std::shared_ptr<nn::Backend>& backend, const Sizes& sizes)
        : of(sizes),
          characters(table(backend, "characters", sizes.kinds, 1)),
          places(table(backend, "places", sizes.length, 2)),
          blocks(register_module("blocks", nn::ModuleList<Block>())),
          norm(register_module("norm", nn::LayerNorm(backend, {sizes.width}))),
          output(register_module("output", nn::Linear(backend, sizes.width, sizes.kinds, 3))) {
        for (int64_t k = 0; k < of.blocks; ++k)
            blocks.push_back(Block(backend, of.width, of.heads, 10 * static_cast<uint64_t>(k + 1)));
    }

    // ids [sequences * length] -> [sequences * length, kinds]
    nn::Tensor operator()(const nn::Tensor& ids) const {
        nn::Tensor x = nn::reshape(nn::embedding(characters, ids, places), {-1, of.length, of.width});
        for (const Block& block : blocks) x = block(x);
        return nn::reshape(output(norm(x)), {-1, of.kinds});
    }

private:
    nn::Tensor table(const std::shared_ptr<nn::Backend>& backend, const std::string& name, int64_t rows,
                     uint64_t seed) {
        const double bound = 1 / std::sqrt(static_cast<double>(of.width));
        return register_parameter(name, nn::uniform_parameter(backend, {rows, of.width}, bound, seed, name));
    }
};

// One of the kinds, drawn by their logits. A temperature below 1 makes likely ones likelier.
int32_t draw_from(const HostArray& logits, int64_t row, double temperature, std::mt19937& random) {
    std::vector<double> weights;
    for (int64_t kind = 0; kind < logits.shape[1]; ++kind)
        weights.push_back(std::exp(logits.at({row, kind}).real / temperature));
    return static_cast<int32_t>(std::discrete_distribution<int>(weights.begin(), weights.end())(random));
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "25. A transformer");
    const bool On_gpu = lesson.size(0, 1) == 1;
    const Text text(read_text(On_gpu));
    const Sizes Of{.kinds = static_cast<int64_t>(text.known.size()),
                   .length = lesson.size(16, 128),
                   .width = lesson.size(32, 192),
                   .heads = lesson.size(2, 3),
                   .blocks = lesson.size(1, 3)};
    const int64_t Batch = lesson.size(4, 32), Steps = lesson.size(60, 1000), Rows = Batch * Of.length;
    auto backend = std::make_shared<nn::Backend>(lesson.device());
    const Network network(backend, Of);
    fmt::print("{} characters of {} kinds. The network's parameters:\n\n", text.numbers.size(), Of.kinds);
    for (const auto& [name, parameter] : network.named_parameters())
        fmt::print("    {:<30} {}\n", name, nn::shape_text(parameter.shape()));

    // AdamW divides what it moves a weight by, by how large its gradient has been of late. Gradients are clipped: all
    // of them together are 1 long at most, so that one odd batch cannot throw the network off.
    nn::AdamW adamw(network.parameters(), 0, {.beta2 = 0.98, .weight_decay = 0.1, .max_norm = 1});
    const double Peak = On_gpu ? 3e-3 : 2e-2;
    const nn::RateSchedule rates =
        nn::cosine_rate({.peak = Peak, .warmup = Steps / 20, .steps = Steps, .last = Peak / 20});

    // The step as one graph, in mixed precision: tensor cores multiply values of bf16, attention is one kernel that
    // keeps no scores, and sums, norms, losses and weights stay f32 (docs/step.md). Nothing else changes for that.
    const StepOptions options{.mixed = {.values = bf16}};
    const nn::Tensor here(backend, i32, {Rows}, "here"), next(backend, i32, {Rows}, "next");
    const nn::CompiledStep step = nn::compile(
        backend,
        [&] {
            const nn::Tensor loss = nn::cross_entropy(network(here), next);
            nn::backward(loss);
            adamw.step();
            return std::vector{loss};
        },
        options);
    lesson.say(fmt::format("A step is {} kernels in one launch; {} bytes lie between them.", step.plan().num_kernels(),
                           step.plan().arena_bytes));

    // A batch: pieces of the text from anywhere, and the same pieces one character on, which is what to say of each
    // character. Which pieces follows from the step's number alone: who goes on from a checkpoint has the same ones.
    int64_t done = 0;
    auto train = [&] {
        std::mt19937 random(static_cast<uint32_t>(done));
        std::vector<int32_t> from, to;
        for (int64_t row = 0; row < Batch; ++row) {
            const size_t begin = random() % text.numbers.size();
            for (int64_t k = 0; k < Of.length; ++k) {
                from.push_back(text.numbers[(begin + static_cast<size_t>(k)) % text.numbers.size()]);
                to.push_back(text.numbers[(begin + static_cast<size_t>(k) + 1) % text.numbers.size()]);
            }
        }
        here.data().write(from);
        next.data().write(to);
        adamw.set_rate(rates(done++));
        step.run();
        return step.results()[0].to_host().at({}).real;
    };

    // Who knows nothing is wrong by log(kinds) a character: all are as likely. Who has counted them is better, who has
    // seen words better still.
    double loss = 0;
    while (done < Steps) {
        loss = train();
        if (done == 1 || done % (Steps / 6) == 0) fmt::print("step {:>4}: loss {:.3f}\n", done, loss);
    }
    const double Goal = On_gpu ? 1.7 : 1.4, Ignorant = std::log(static_cast<double>(Of.kinds));
    lesson.expect(loss < Goal, fmt::format("{:.3f} nats a character are below {} (who knows nothing: {:.3f})", loss,
                                           Goal, Ignorant));

    // A checkpoint keeps what the next step depends on: parameters, moments, how many steps there were. It names these
    // and copies nothing; save() writes a safetensors file, which Python reads, too. Here, the run goes on for two
    // steps, goes back, and takes them once more.
    nn::Checkpoint kept;
    kept.add("network", network).add("adamw", adamw.states()).add("step", done);
    kept.save("characters.safetensors");
    const std::vector<double> first{train(), train()};
    kept.load("characters.safetensors");
    const std::vector<double> again{train(), train()};
    lesson.expect(first == again, "what goes on from a checkpoint has the same bits");

    // To write, only the logits are needed: a graph without gradients, of one sequence. They are read where the last
    // character stands; behind it may stand anything, since characters look at those before them alone.
    const nn::Tensor so_far(backend, i32, {Of.length}, "so_far");
    const nn::CompiledStep say = nn::compile(
        backend, [&] { return std::vector{network(so_far)}; }, options);
    auto logits_of = [&](std::vector<int32_t> ids, int32_t behind) {
        ids.resize(static_cast<size_t>(Of.length), behind);
        so_far.data().write(ids);
        say.run();
        return say.results()[0].to_host();
    };
    const std::vector<int32_t> start(text.numbers.begin(), text.numbers.begin() + 4);
    const HostArray one = logits_of(start, 0), other = logits_of(start, 1);
    bool same = true;
    for (int64_t row = 0; row < 4; ++row)
        for (int64_t kind = 0; kind < Of.kinds; ++kind) same &= one.at({row, kind}).real == other.at({row, kind}).real;
    lesson.expect(same, "what is said of a character does not depend on those behind it");

    std::vector<int32_t> window = start;
    std::string written;
    for (int32_t number : start) written += text.known[static_cast<size_t>(number)];
    std::mt19937 random(7);
    for (int64_t k = 0; k < lesson.size(60, 400); ++k) {
        const int64_t last = static_cast<int64_t>(window.size()) - 1;
        const int32_t drawn = draw_from(logits_of(window, 0), last, 0.5, random);
        written += text.known[static_cast<size_t>(drawn)];
        window.push_back(drawn);
        if (std::ssize(window) > Of.length) window.erase(window.begin());
    }
    lesson.say("It writes: " + written);
    return lesson.finish();
}

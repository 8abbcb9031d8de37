// tw train: networks on nothing but generated kernels, each step one launch.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops/autograd.h"
#include "ops/optimizer.h"
#include "ops/optimizers/rate_schedule.h"
#include "ops/persistence/checkpoint.h"
#include "ops/step/compile_step.h"
#include "ops/step/memory_map.h"
#include "support/error.h"
#include "support/progress.h"
#include "tools/commands.h"
#include "tools/numbers.h"
#include "tools/output.h"
#include "tools/train/loss_record.h"
#include "tools/train/model.h"

namespace tw {
namespace {

struct TrainOptions {
    std::string network, device, values = "f32", csv, svg, memory, checkpoint, after;
    ModelOptions model;
    int64_t steps = 0, every = 10, save_every = 500;
    double rate = 0, weight_decay = -1;
    bool resume = false, explain = false;
};

/// What each network is trained with where nothing is said.
struct Recipe {
    std::unique_ptr<TrainedModel> (*make)(const std::shared_ptr<nn::Backend>&, const ModelOptions&);
    int64_t steps, small_steps;
    double rate, weight_decay;
};
Recipe recipe_of(const std::string& network) {
    if (network == "mlp") return {make_mlp, 3000, 150, 3e-3, 0.1};
    if (network == "cnn") return {make_cnn, 1000, 40, 5e-3, 0.05};
    return {make_chars, 1000, 30, 3e-3, 0.1};
}

Type type_of_values(const std::string& name) { return name == "bf16" ? bf16 : name == "f16" ? f16 : f32; }

/// Throws Error where options leave each other without a meaning, or a run that was kept would be lost.
void require_sense(const TrainOptions& options) {
    const auto here = std::source_location::current();
    user_check(!options.resume || !options.checkpoint.empty(), here,
               "train: --resume goes on from a checkpoint; name it with --checkpoint FILE");
    if (!options.checkpoint.empty()) {
        const std::filesystem::path folder = std::filesystem::absolute(options.checkpoint).parent_path();
        user_check(access(folder.c_str(), W_OK) == 0, here,
                   "train: cannot write {}; name a file in a folder that exists, and that is yours",
                   options.checkpoint);
        user_check(options.resume || !std::filesystem::exists(options.checkpoint), here,
                   "train: {} is there already; go on from it with --resume, or name another file", options.checkpoint);
    }
    user_check(options.network == "chars" || options.model.texts.empty(), here,
               "train: {} learns from no text; --text is for chars", options.network);
}

/// Throws Error unless it is empty or the name of a pass of plan_step().
void require_pass(const std::string& name) {
    std::vector<std::string> names = step_pass_names();
    names.insert(names.begin(), "declared");
    user_check(name.empty() || std::ranges::find(names, name) != names.end(), std::source_location::current(),
               "train: there is no pass '{}'; --after takes {}", name, fmt::join(names, ", "));
}

class Training {
public:
    Training(const TrainOptions& options, const std::shared_ptr<Device>& device)
        : options_(options),
          recipe_(recipe_of(options.network)),
          backend_(std::make_shared<nn::Backend>(device)),
          model_(recipe_.make(backend_, options.model)),
          adamw_(model_->parameters(), 0,
                 {.beta2 = 0.98,
                  .weight_decay = options.weight_decay < 0 ? recipe_.weight_decay : options.weight_decay,
                  .max_norm = 1}),
          record_(options.csv, options.svg, options.network + ": loss") {
        if (options_.steps == 0) options_.steps = options.model.small ? recipe_.small_steps : recipe_.steps;
        if (options_.rate == 0) options_.rate = recipe_.rate;
        print("{}: {}\n", options_.network, model_->description());
        const auto begin = std::chrono::steady_clock::now();
        if (options_.values == "f16") scale_.emplace(backend_);
        step_ =
            nn::compile(backend_, [&] { return std::vector{declare_step()}; },
                        {.mixed = {.values = type_of_values(options_.values)}, .watch = [&](const StepStage& stage) {
                             if (stage.pass == options_.after) print("after {}:\n{}", stage.pass, stage.text());
                         }});
        print("{} parameters; a step is {} kernels in one launch, planned and compiled in {:.1f} s\n", num_parameters(),
              step_.plan().num_kernels(), seconds_since(begin));
        if (options_.explain)
            print("{}{}{}", step_.plan().text(), step_.explain({.sorted = true}), memory_map(step_.plan()));
        if (!options_.memory.empty()) write_memory_picture(options_.memory, step_.plan());
        keep_all();
    }

    Score run() {
        if (options_.resume) resume();
        const auto rates = nn::cosine_rate({.peak = options_.rate,
                                            .warmup = options_.steps / 20,
                                            .steps = options_.steps,
                                            .last = options_.rate / 20});
        const auto begin = std::chrono::steady_clock::now();
        const int64_t first = done_;
        record_.begin(done_);
        const size_t num_known = record_.curve().size();
        {
            Progress bar("training", options_.steps);
            while (done_ < options_.steps) {
                model_->draw(done_);
                adamw_.set_rate(rates(done_));
                step_.run();
                ++done_;
                if (done_ % options_.every == 0 || done_ == options_.steps) note_loss(bar);
                const bool is_time = done_ % options_.save_every == 0 || done_ == options_.steps;
                if (is_time) keep();
            }
        }
        const double seconds = seconds_since(begin);
        if (done_ > first)
            print("{} steps in {:.1f} s, {:.3f} ms each; loss {:.4f} at step {}, {:.4f} at step {}\n", done_ - first,
                  seconds, seconds / static_cast<double>(done_ - first) * 1e3, record_.curve()[num_known].second,
                  record_.curve()[num_known].first, record_.curve().back().second, record_.curve().back().first);
        else
            print("all {} steps are done; --steps {} would go on\n", done_, 2 * done_);
        if (scale_) print("{}\n", scale_text());
        const Score score = model_->score();
        print("{}\n", score.text);
        return score;
    }

private:
    nn::Tensor declare_step() {
        const nn::Tensor loss = model_->loss();
        nn::backward(scale_ ? (*scale_)(loss) : loss);
        if (scale_) {
            adamw_.step(*scale_);
            scale_->step();
        } else {
            adamw_.step();
        }
        return loss;
    }
    void keep_all() {
        kept_.add("parameters", model_->parameters()).add("adamw", adamw_.states()).add("states", model_->states());
        if (scale_) kept_.add("loss_scale", scale_->states());
        kept_.add("step", done_);
        const ModelOptions& model = options_.model;
        kept_.add_setting("network", options_.network + (model.small ? " --small" : ""));
        kept_.add_setting("values", options_.values).add_setting("seed", std::to_string(model.seed));
        kept_.add_setting("batch", model.batch > 0 ? std::to_string(model.batch) : "as the network says");
        if (const std::string data = model_->data(); !data.empty()) kept_.add_setting("data", data);
    }
    void keep() const {
        if (!options_.checkpoint.empty()) kept_.save(options_.checkpoint);
        record_.draw();
    }
    /// The optimizer counts the steps that it makes; gradients that overflowed are none.
    std::string scale_text() const {
        const auto number = [](const nn::Tensor& tensor) { return tensor.to_host().at({}).real; };
        const int64_t made = static_cast<int64_t>(number(adamw_.states().back()));
        return fmt::format("loss scale {} at last; {} of {} steps were skipped, as gradients overflowed",
                           number(scale_->value()), done_ - made, done_);
    }
    static double seconds_since(std::chrono::steady_clock::time_point begin) {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    int64_t num_parameters() const {
        int64_t count = 0;
        for (const nn::Tensor& parameter : model_->parameters()) {
            int64_t own = 1;
            for (int64_t extent : parameter.shape()) own *= extent;
            count += own;
        }
        return count;
    }
    void resume() {
        if (!std::filesystem::exists(options_.checkpoint))
            return print("no {} yet: from the beginning\n", options_.checkpoint);
        kept_.load(options_.checkpoint);
        print("resumed behind step {}\n", done_);
    }
    void note_loss(Progress& bar) {
        const double loss = step_.results()[0].to_host().at({}).real;
        if (!std::isfinite(loss))
            throw_error(Error, "train: the loss of step {} is {}; take a lower --rate, which is {}", done_, loss,
                        options_.rate);
        record_.add(done_, loss);
        bar.show(done_, fmt::format("loss {:.4f}", loss));
    }

    TrainOptions options_;
    const Recipe recipe_;
    std::shared_ptr<nn::Backend> backend_;
    std::unique_ptr<TrainedModel> model_;
    nn::AdamW adamw_;
    std::optional<nn::LossScale> scale_;
    nn::CompiledStep step_;
    nn::Checkpoint kept_;
    int64_t done_ = 0;
    LossRecord record_;
};

void add_options(CLI::App* command, TrainOptions& options) {
    constexpr uint64_t most = uint64_t{1} << 40;
    command->add_option("network", options.network, "mlp, cnn: handwritten digits; chars: which character comes next")
        ->required()
        ->check(CLI::IsMember({"mlp", "cnn", "chars"}));
    command->add_option("--device", options.device, "cuda or emulated; the GPU if there is one");
    command->add_option("--steps", options.steps, "as the network says")->check(whole_number(1, most));
    command->add_option("--batch", options.model.batch, "images or sequences of a step")
        ->check(whole_number(1, 1 << 20));
    command->add_option("--rate", options.rate, "the highest, of AdamW")->check(positive_real());
    command->add_option("--weight-decay", options.weight_decay, "of AdamW")->check(non_negative_real());
    command->add_option("--seed", options.model.seed, "of weights and batches")->check(seed_number());
    command->add_option("--values", options.values, "activations and adjoints: f32, bf16, or f16 with scaled losses")
        ->check(CLI::IsMember({"f32", "bf16", "f16"}));
    command->add_flag("--small", options.model.small, "a network that the emulator trains in seconds");
    command->add_option("--text", options.model.texts, "chars: files to learn, in place of the project's documents");
    command->add_option("--loss", options.csv, "a file for step and loss, comma-separated, written as they come");
    command->add_option("--svg", options.svg, "a file for the curve as a picture, drawn at each checkpoint");
    command->add_option("--every", options.every, "steps between losses that are read")->check(whole_number(1, most));
    command->add_option("--checkpoint", options.checkpoint, "a file that keeps the run, written as it goes");
    command->add_option("--save-every", options.save_every, "steps between checkpoints")
        ->check(whole_number(1, most))
        ->needs("--checkpoint");
    command->add_flag("--resume", options.resume, "go on from the checkpoint, if there is one: with the same bits");
    command->add_flag("--explain", options.explain,
                      "the step's groups, kernels, memory, and why; times as predicted and measured");
    command->add_option("--after", options.after, "print the step after this pass of planning: declared, cut, ..");
    command->add_option("--memory", options.memory, "a file for a picture of the step's memory, group by group");
}

}  // namespace

void add_train_command(CLI::App& app) {
    auto options = std::make_shared<TrainOptions>();
    CLI::App* command = app.add_subcommand("train", "train a network by generated kernels alone, each step one launch");
    add_options(command, *options);
    command->callback([options] {
        require_pass(options->after);
        require_sense(*options);
        const std::shared_ptr<Device> device =
            options->device.empty() ? best_device().device : open_device(options->device);
        Training(*options, device).run();
    });
}

}  // namespace tw

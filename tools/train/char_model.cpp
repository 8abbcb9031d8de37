// A transformer that learns characters (Vaswani et al. 2017; layer norms in front, as GPT-2).
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "ops/attention.h"
#include "ops/layers.h"
#include "ops/normalization.h"
#include "ops/parameters.h"
#include "ops/step/compile_step.h"
#include "ops/views.h"
#include "support/error.h"
#include "tools/train/model.h"

namespace tw {
namespace {

std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw_error(Error, "train: cannot read {}; name text files that exist", path);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// README.md, and docs/ in the order of names.
std::vector<std::string> own_documents() {
    const std::filesystem::path root = TILEWRIGHT_SOURCES;
    std::vector<std::string> paths{(root / "README.md").string()};
    for (const auto& entry : std::filesystem::directory_iterator(root / "docs"))
        if (entry.path().extension() == ".md") paths.push_back(entry.path().string());
    std::ranges::sort(paths);
    return paths;
}

struct Sizes {
    int64_t batch, length, width, heads, blocks;
};

/// Bytes of a text as numbers of those that occur. Of ten pieces one is held out.
class Characters {
public:
    explicit Characters(const std::vector<std::string>& paths) {
        std::string text;
        for (const std::string& path : paths.empty() ? own_documents() : paths) text += read_text(path);
        for (const char character : text) checksum_ = mixed(checksum_, static_cast<unsigned char>(character));
        std::string known = text;
        std::ranges::sort(known);
        known.erase(std::unique(known.begin(), known.end()), known.end());
        constexpr size_t piece = 2048, of = 10;
        for (size_t at = 0; at < text.size(); ++at) {
            const auto number = static_cast<int32_t>(std::ranges::lower_bound(known, text[at]) - known.begin());
            (at / piece % of == of - 1 ? held_out_ : training_).push_back(number);
        }
        kinds_ = static_cast<int64_t>(known.size());
    }
    int64_t kinds() const { return kinds_; }
    uint64_t checksum() const { return checksum_; }
    const std::vector<int32_t>& training() const { return training_; }
    const std::vector<int32_t>& held_out() const { return held_out_; }

private:
    std::vector<int32_t> training_, held_out_;
    int64_t kinds_ = 0;
    uint64_t checksum_ = 0;
};

/// `length` characters, and those behind each, appended.
void read_sequence(const std::vector<int32_t>& text, int64_t from, int64_t length, std::vector<int32_t>& here,
                   std::vector<int32_t>& next) {
    here.insert(here.end(), text.begin() + from, text.begin() + from + length);
    next.insert(next.end(), text.begin() + from + 1, text.begin() + from + length + 1);
}

struct Block : nn::Module {
    nn::LayerNorm norm1, norm2;
    nn::Linear qkv, out, up, down;

    Block(const std::shared_ptr<nn::Backend>& backend, int64_t width, uint64_t seed)
        : norm1(register_module("norm1", nn::LayerNorm(backend, {width}))),
          norm2(register_module("norm2", nn::LayerNorm(backend, {width}))),
          qkv(register_module("qkv", nn::Linear(backend, width, 3 * width, seed))),
          out(register_module("out", nn::Linear(backend, width, width, seed + 1))),
          up(register_module("up", nn::Linear(backend, width, 4 * width, seed + 2))),
          down(register_module("down", nn::Linear(backend, 4 * width, width, seed + 3))) {}

    nn::Tensor operator()(const nn::Tensor& x, const Sizes& of) const {
        const nn::Scope here = scope();
        const int64_t depth = of.width / of.heads, rows = of.batch * of.length;
        const nn::Tensor all = nn::reshape(qkv(norm1(x)), {of.batch, of.length, 3, of.heads, depth});
        auto part = [&](int64_t n) {
            return nn::reshape(nn::slice(all, 2, n, n + 1), {of.batch, of.length, of.heads, depth});
        };
        const nn::Tensor o = nn::attention(part(0), part(1), part(2), {.causal = true});
        const nn::Tensor y = nn::add(x, out(nn::reshape(o, {rows, of.width})));
        return nn::add(y, down(nn::gelu(up(norm2(y)))));
    }
    std::vector<nn::Tensor> parameters() const {  // in the order that checkpoints have
        return nn::joined({norm1.parameters(), qkv.parameters(), out.parameters(), norm2.parameters(), up.parameters(),
                           down.parameters()});
    }
};

class CharacterModel : public TrainedModel {
public:
    CharacterModel(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options)
        : backend_(backend),
          is_small_(options.small),
          seed_(options.seed),
          text_(options.texts),
          of_(sizes(options)),
          blocks_(network_.register_module("blocks", nn::ModuleList<Block>())),
          last_norm_(network_.register_module("last_norm", nn::LayerNorm(backend, {of_.width}))),
          output_(
              network_.register_module("output", nn::Linear(backend, of_.width, text_.kinds(), options.seed + 99))) {
        const int64_t batch = of_.batch * of_.length, held_out = static_cast<int64_t>(text_.held_out().size());
        user_check(
            held_out > batch, std::source_location::current(),
            "train: {} characters of text are held out, and a batch has {}; give more text, or a smaller --batch",
            held_out, batch);
        const double bound = 1 / std::sqrt(static_cast<double>(of_.width));
        characters_ =
            nn::uniform_parameter(backend, {text_.kinds(), of_.width}, bound, options.seed + 97, "characters");
        places_ = nn::uniform_parameter(backend, {of_.length, of_.width}, bound, options.seed + 98, "places");
        for (int64_t k = 0; k < of_.blocks; ++k)
            blocks_.push_back(Block(backend, of_.width, options.seed + 10 * uint64_t(k + 1)));
        here_ = nn::Tensor(backend, i32, {of_.batch * of_.length}, "here");
        next_ = nn::Tensor(backend, i32, {of_.batch * of_.length}, "next");
        draw(0);
    }

    std::string description() const override {
        return fmt::format("{} blocks of {} with {} heads, sequences of {}; {} characters of {} kinds to learn from",
                           of_.blocks, of_.width, of_.heads, of_.length, text_.training().size(), text_.kinds());
    }
    std::vector<nn::Tensor> parameters() const override {
        std::vector<std::vector<nn::Tensor>> all{{characters_, places_}};
        for (const Block& block : blocks_) all.push_back(block.parameters());
        all.push_back(last_norm_.parameters());
        all.push_back(output_.parameters());
        return nn::joined(all);
    }
    std::string data() const override {
        const size_t characters = text_.training().size() + text_.held_out().size();
        return fmt::format("{} characters, checksum {:016x}", characters, text_.checksum());
    }
    nn::Tensor loss() const override {
        nn::Tensor x = nn::embedding(characters_, here_, places_);
        for (const Block& block : blocks_) x = block(x, of_);
        return nn::cross_entropy(output_(last_norm_(x)), next_);
    }
    void draw(int64_t step) override {
        const uint64_t places = text_.training().size() - static_cast<uint64_t>(of_.length);
        std::vector<int32_t> here, next;
        for (int64_t row = 0; row < of_.batch; ++row)
            read_sequence(text_.training(),
                          static_cast<int64_t>(
                              mixed(mixed(seed_, static_cast<uint64_t>(step)), static_cast<uint64_t>(row)) % places),
                          of_.length, here, next);
        write(here, next);
    }
    /// Of sequences one behind the other.
    Score score() override {
        if (!judged_) judged_ = nn::compile(backend_, [&] { return std::vector{loss()}; });
        const int64_t of_batch = of_.batch * of_.length;
        const int64_t all = (static_cast<int64_t>(text_.held_out().size()) - 1) / of_batch;
        const int64_t batches = is_small_ ? std::min<int64_t>(all, 10) : all;
        double sum = 0;
        for (int64_t n = 0; n < batches; ++n) {
            std::vector<int32_t> here, next;
            read_sequence(text_.held_out(), n * of_batch, of_batch, here, next);
            write(here, next);
            judged_->run();
            sum += judged_->results()[0].to_host().at({}).real;
        }
        const double nats = sum / static_cast<double>(batches);
        return {nats, fmt::format("{:.3f} nats a character on {} that it has not seen", nats, batches * of_batch)};
    }

private:
    static Sizes sizes(const ModelOptions& options) {
        Sizes of = options.small ? Sizes{2, 16, 32, 2, 1} : Sizes{32, 128, 192, 3, 3};
        if (options.batch > 0) of.batch = options.batch;
        return of;
    }
    void write(const std::vector<int32_t>& here, const std::vector<int32_t>& next) const {
        here_.data().write(here);
        next_.data().write(next);
    }

    std::shared_ptr<nn::Backend> backend_;
    bool is_small_;
    uint64_t seed_;
    Characters text_;
    Sizes of_;
    nn::Tensor characters_, places_, here_, next_;
    nn::Module network_;
    nn::ModuleList<Block> blocks_;
    nn::LayerNorm last_norm_;
    nn::Linear output_;
    std::optional<nn::CompiledStep> judged_;
};

}  // namespace

std::unique_ptr<TrainedModel> make_chars(const std::shared_ptr<nn::Backend>& backend, const ModelOptions& options) {
    return std::make_unique<CharacterModel>(backend, options);
}

}  // namespace tw

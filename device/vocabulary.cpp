#include "device/vocabulary.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "device/wgmma.h"
#include "support/error.h"

namespace tw::device {

// Made from the .cuh files and cpu/*.h by embed.cmake.
extern const char* const kVocabularyText;
extern const char* const kPreludeText;

namespace {

// Lines between the parts of a printed text.
constexpr const char* kRule = "// ---- ";
constexpr const char *kInstructions = "vocabulary: what the GPU has", *kFunctions = "vocabulary: what is made of it",
                     *kKernel = "kernel";

std::string ruled(const char* title) {
    std::string line = std::string(kRule) + title + " ";
    return line + std::string(120 - line.size(), '-') + "\n";
}

/// A block of a .cuh file.
struct Primitive {
    std::string name;
    bool common = false;       // plain C++ that serves the GPU and the emulator
    bool approximate = false;  // see is_approximate
    std::vector<std::string> needs;
    std::string text;
};

/// The line above a block: "//: exp common needs ex2_approx fma".
Primitive parse_marker(const std::string& line) {
    std::istringstream words(line.substr(3));
    Primitive primitive;
    words >> primitive.name;
    std::string word;
    while (words >> word && word != "needs") {
        internal_check(word == "common" || word == "approximate", "'{}': what is '{}'?", line, word);
        (word == "common" ? primitive.common : primitive.approximate) = true;
    }
    while (words >> word) primitive.needs.push_back(word);
    return primitive;
}

std::vector<Primitive> parse_vocabulary() {
    std::vector<Primitive> primitives;
    std::istringstream lines(kVocabularyText);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("//: "))
            primitives.push_back(parse_marker(line));
        else if (!primitives.empty())
            primitives.back().text += line + "\n";
    }
    for (Primitive& primitive : primitives) primitive.text.erase(primitive.text.find_last_not_of('\n') + 1);
    return primitives;
}

const std::vector<Primitive>& primitives() {
    static const std::vector<Primitive> all = parse_vocabulary();
    return all;
}

/// A primitive of one of the families, made when asked for.
std::optional<Primitive> generated(const std::string& name) {
    auto product = find_warpgroup_product(name);
    if (!product) return std::nullopt;
    return Primitive{.name = name, .needs = {}, .text = product->text()};
}

Primitive named(const std::string& name) {
    if (auto member = generated(name)) return *member;
    auto found =
        std::find_if(primitives().begin(), primitives().end(), [&](const Primitive& p) { return p.name == name; });
    internal_check(found != primitives().end(), "no primitive is named '{}'", name);
    return *found;
}

void add_with_needs(const std::string& name, std::set<std::string>& names) {
    if (!names.insert(name).second) return;
    const Primitive primitive = named(name);
    for (const std::string& need : primitive.needs) add_with_needs(need, names);
}

}  // namespace

std::string vocabulary_text(const std::set<std::string>& used) {
    std::set<std::string> names;
    for (const std::string& name : used) add_with_needs(name, names);

    std::string gpu, common;
    auto add = [&](const Primitive& primitive) {
        if (primitive.text.empty()) return;
        std::string& text = primitive.common ? common : gpu;
        text += (text.empty() ? "" : "\n") + primitive.text + "\n";
    };
    for (const Primitive& primitive : primitives())
        if (names.contains(primitive.name)) add(primitive);
    for (const std::string& name : names)
        if (auto member = generated(name)) add(*member);
    if (gpu.empty() && common.empty()) return "";
    // The GPU's own first: the common ones build on them, never the other way round.
    auto part = [](const char* title, const std::string& functions) {
        return functions.empty() ? "" : ruled(title) + "namespace tw {\n" + functions + "}  // namespace tw\n\n";
    };
    return part(kInstructions, gpu) + part(kFunctions, common) + ruled(kKernel);
}

std::string for_emulator(const std::string& text) {
    std::string result;
    std::istringstream lines(text);
    bool of_the_gpu = false;
    for (std::string line; std::getline(lines, line); result += "\n") {
        if (line.starts_with(kRule)) of_the_gpu = line.starts_with(std::string(kRule) + kInstructions);
        if (!of_the_gpu) result += line;
    }
    return result;
}

std::string emulator_prelude() { return kPreludeText; }

bool is_approximate(const std::string& name) {
    const Primitive primitive = named(name);
    return primitive.approximate || std::any_of(primitive.needs.begin(), primitive.needs.end(), is_approximate);
}

std::vector<std::string> vocabulary() {
    std::vector<std::string> names;
    for (const Primitive& primitive : primitives()) names.push_back(primitive.name);
    return names;
}

}  // namespace tw::device

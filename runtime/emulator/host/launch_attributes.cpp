#include "runtime/emulator/host/launch_attributes.h"

#include <algorithm>
#include <cstdlib>

namespace tw::emulator {
namespace {

bool has(const std::string& text, const char* what) { return text.find(what) != std::string::npos; }

/// The numbers in the brackets behind the name.
std::vector<unsigned> numbers_behind(const std::string& text, const std::string& name) {
    std::vector<unsigned> numbers;
    const size_t at = text.find(name + "(");
    if (at == std::string::npos) return numbers;
    const char* next = text.c_str() + at + name.size();
    do {
        char* end = nullptr;
        const unsigned long number = std::strtoul(next + 1, &end, 10);
        if (end == next + 1) break;
        numbers.push_back(unsigned(number));
        next = end;
    } while (*next == ',');
    return numbers;
}

/// Between the brackets that open at `at`, at their commas.
std::vector<std::string> parameters_at(const std::string& text, size_t at) {
    std::vector<std::string> parameters(1);
    int depth = 0;
    for (; at < text.size(); ++at) {
        const char c = text[at];
        depth += (c == '(') - (c == ')');
        if (depth == 0) break;
        if (c == ',' && depth == 1)
            parameters.emplace_back();
        else if (depth > 1 || c != '(')
            parameters.back() += c;
    }
    return parameters;
}

std::string last_word(const std::string& text) {
    const size_t end = text.find_last_not_of(" \n\t") + 1, begin = text.find_last_of(" \n\t", end - 1) + 1;
    return text.substr(begin, end - begin);
}

/// Where the brackets of the kernel's parameters open, and where its head begins; npos if there is none.
size_t find_head(const std::string& text, const std::string& kernel, size_t& begin) {
    for (size_t at = 0; (at = text.find(kernel + "(", at)) != std::string::npos; ++at) {
        begin = text.rfind("__global__", at);
        const bool is_whole_word = at > 0 && (text[at - 1] == ' ' || text[at - 1] == '\n');
        if (!is_whole_word || begin == std::string::npos) continue;
        if (text.substr(begin, at - begin).find_first_of(";{}") == std::string::npos) return at + kernel.size();
    }
    return std::string::npos;
}

}  // namespace

LaunchAttributes attributes_in(const std::string& text, const std::string& kernel) {
    LaunchAttributes result;
    size_t begin = 0;
    const size_t brackets = find_head(text, kernel, begin);
    if (brackets == std::string::npos) return result;
    const std::string head = text.substr(begin, brackets - begin);
    if (auto bounds = numbers_behind(head, "__launch_bounds__"); !bounds.empty()) {
        result.threads = bounds[0];
        if (bounds.size() > 1) result.blocks = bounds[1];
    }
    if (auto sides = numbers_behind(head, "__cluster_dims__"); !sides.empty()) {
        sides.resize(3, 1);
        std::copy(sides.begin(), sides.end(), result.cluster);
    }
    for (const std::string& parameter : parameters_at(text, brackets))
        if (has(parameter, "TensorMap") && !has(parameter, "__grid_constant__") && !has(parameter, "&") &&
            !has(parameter, "*"))
            result.copied_maps.push_back(last_word(parameter));
    return result;
}

}  // namespace tw::emulator

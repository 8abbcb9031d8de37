// Kernels as they are compared where names may differ.
#pragma once
#include <regex>
#include <string>

namespace tw::schedules {

/// Kernels without comments, names, and what depends on how long these are: where lines break, and braces around them.
inline std::string without_names(const std::string& cuda) {
    static const std::regex comment("//[^\\n]*"), name("(tw::)?\\b[A-Za-z_][A-Za-z_0-9]*"), layout("[\\s{}]+");
    std::string text = std::regex_replace(cuda, comment, ""), result;
    size_t last = 0;
    for (std::sregex_iterator found(text.begin(), text.end(), name), none; found != none; ++found) {
        const auto at = static_cast<size_t>(found->position());
        result += text.substr(last, at - last) + ((*found)[1].matched ? found->str() : "name");
        last = at + found->str().size();
    }
    return std::regex_replace(result + text.substr(last), layout, "");
}

}  // namespace tw::schedules

// Golden files: printed text that reviewers read. TW_UPDATE_GOLDEN=1 writes them anew.
#pragma once
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace tw {

/// Whether `text` is what tests/golden/<name> contains. Tests run in the project's root.
inline testing::AssertionResult matches_golden(const std::string& text, const std::string& name) {
    const std::string path = "tests/golden/" + name;
    if (const char* update = std::getenv("TW_UPDATE_GOLDEN"); update && std::string(update) == "1") {
        std::ofstream(path) << text;
        return testing::AssertionSuccess();
    }
    std::ifstream file(path);
    if (!file) return testing::AssertionFailure() << "no " << path << "; run with TW_UPDATE_GOLDEN=1";
    std::stringstream golden;
    golden << file.rdbuf();
    if (golden.str() == text) return testing::AssertionSuccess();
    std::istringstream now(text);
    std::string expected, got;
    int line = 1;
    for (; std::getline(golden, expected) && std::getline(now, got) && expected == got;) ++line;
    return testing::AssertionFailure() << path << ":" << line << " differs; TW_UPDATE_GOLDEN=1 accepts the change\n"
                                       << "  golden: " << expected << "\n  now:    " << got << "\n"
                                       << text;
}

}  // namespace tw

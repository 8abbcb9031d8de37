// error_coverage <directory> <test>...: fails with the list of the check sites whose message no test has read.
//
// This program is linked with all of our libraries, so that check_sites() is all there are. The tests have left their
// notes in the directory (expect_error.h). Exit status 77, "skipped", unless each of the named tests has passed.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "support/error.h"

namespace {

constexpr int Skipped = 77;

std::set<std::string, std::less<>> read_notes(const std::filesystem::path& directory) {
    std::set<std::string, std::less<>> notes;
    if (!std::filesystem::exists(directory)) return notes;
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
        std::ifstream lines(file.path());
        for (std::string line; std::getline(lines, line);) notes.insert(line);
    }
    return notes;
}

// The source line of "dsl/split.cpp:31", when the tests run in the source tree.
std::string source_line(std::string_view place) {
    size_t colon = place.rfind(':');
    std::ifstream source{std::string(place.substr(0, colon))};
    std::string line;
    for (int rest = std::stoi(std::string(place.substr(colon + 1))); rest > 0; --rest) std::getline(source, line);
    return line.substr(std::min(line.find_first_not_of(' '), line.size()));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        fmt::print("usage: error_coverage <directory> <test>...\n");
        return 2;
    }
    auto notes = read_notes(argv[1]);
    for (std::string test : std::vector<std::string>(argv + 2, argv + argc)) {
        if (notes.contains("passed " + test)) continue;
        fmt::print("skipped: only a full run in which all tests pass is judged, and {} did not\n", test);
        return Skipped;
    }

    int num_unread = 0;
    for (std::string_view place : tw::check_sites()) {
        if (notes.contains(place)) continue;
        if (num_unread++ == 0)
            fmt::print("No test reads the message of these checks; write an EXPECT_ERROR for each:\n");
        fmt::print("  {}: {}\n", place, source_line(place));
    }
    fmt::print("{} check sites, {} unread\n", tw::check_sites().size(), num_unread);
    return num_unread == 0 ? 0 : 1;
}

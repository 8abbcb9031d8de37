#include "tests/support/expect_error.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace tw {
namespace {

// One file per process: programs that run at the same time do not write into each other's lines.
void note(const std::string& line) {
    const char* directory = std::getenv("TW_READ_SITES_DIR");
    if (!directory) return;
    std::filesystem::create_directories(directory);
    std::ofstream(std::filesystem::path(directory) / std::to_string(getpid()), std::ios::app) << line << "\n";
}

}  // namespace

void note_site_read(const CheckSite* site) {
    if (site) note(site->place);
}

void note_test_passed(const std::string& name) { note("passed " + name); }

}  // namespace tw

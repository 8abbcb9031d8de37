#include "support/progress.h"

#include <algorithm>
#include <cstdio>

#include <unistd.h>

#include <fmt/format.h>

namespace tw {

namespace {
constexpr int64_t Width = 24;
}

Progress::Progress(std::string what, int64_t total)
    : what_(std::move(what)), total_(std::max<int64_t>(total, 1)), visible_(isatty(2)) {}

Progress::~Progress() { clear(); }

void Progress::show(int64_t done, const std::string& now) const {
    if (!visible_) return;
    int64_t filled = std::min(done, total_) * Width / total_;
    fmt::print(stderr, "\r{} [{:-<{}}] {}/{} {}\033[K", what_, std::string(size_t(filled), '#'), Width, done, total_,
               now);
    std::fflush(stderr);
}

void Progress::clear() const {
    if (visible_) fmt::print(stderr, "\r\033[K");
}

}  // namespace tw

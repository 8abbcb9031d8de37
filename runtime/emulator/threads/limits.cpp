#include "runtime/emulator/threads/limits.h"

#include <fmt/format.h>

#include "runtime/emulator/memory/running.h"

namespace tw::emulator {

constexpr uint64_t StepsBetweenLooks = 1 << 20;

void Limits::begin() {
    start_ = Clock::now();
    next_chunk();
}

void Limits::next_chunk() {
    chunk_ = std::min(StepsBetweenLooks, options_.step_limit - steps_);
    running.steps_left = int64_t(chunk_);
}

std::optional<std::string> Limits::look() {
    steps_ += chunk_;
    next_chunk();
    if (chunk_ == 0) return fmt::format("{} steps did not end the launch", options_.step_limit);
    if (seconds() >= options_.seconds_limit)
        return fmt::format("{} seconds did not end the launch", options_.seconds_limit);
    return std::nullopt;
}

uint64_t Limits::steps() const { return steps_ + chunk_ - uint64_t(running.steps_left); }

}  // namespace tw::emulator

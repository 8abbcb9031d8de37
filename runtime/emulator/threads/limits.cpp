#include "runtime/emulator/threads/limits.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/emulator/memory/running.h"

namespace tw::emulator {

constexpr uint64_t StepsBetweenLooks = 1 << 20;

void Limits::begin() {
    start_ = Clock::now();
    next_chunk();
}

void Limits::next_chunk() {
    const uint64_t left = options_.step_limit - std::min(steps_, options_.step_limit);
    chunk_ = std::min(StepsBetweenLooks, left);
    running.steps_left = int64_t(chunk_);
}

std::optional<std::string> Limits::look() {
    steps_ = steps();  // the step that has made steps_left negative is one of them
    next_chunk();
    if (chunk_ == 0) return fmt::format("{} steps did not end the launch", options_.step_limit);
    if (seconds() >= options_.seconds_limit)
        return fmt::format("{} seconds did not end the launch", options_.seconds_limit);
    return std::nullopt;
}

uint64_t Limits::steps() const { return steps_ + chunk_ - uint64_t(running.steps_left); }

}  // namespace tw::emulator

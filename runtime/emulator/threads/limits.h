// How long a launch may take.
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "runtime/emulator/host/launch.h"

namespace tw::emulator {

/// Steps are counted down in running.steps_left, in chunks between looks at the clock.
class Limits {
public:
    explicit Limits(const Options& options) : options_(options) {}

    void begin();

    /// Called when steps_left has become negative: "30 seconds did not end the launch", if so.
    std::optional<std::string> look();

    double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
    uint64_t steps() const;

private:
    using Clock = std::chrono::steady_clock;
    void next_chunk();

    const Options& options_;
    uint64_t steps_ = 0, chunk_ = 0;
    Clock::time_point start_;
};

}  // namespace tw::emulator

// The tuner: compiles a search space of tilings, measures it side by side, checks the winner.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/driver/driver.h"
#include "schedules/tuned_records.h"
#include "tuning/tunable.h"

namespace tw::tuning {

struct TuneOptions {
    size_t limit = 60;    ///< tilings tried, the one that is taken today among them
    bool spread = false;  ///< from the whole space, fast and slow ones, instead of those that are expected to be fast
    double seconds = 5;   ///< to measure at most, on a GPU; every round is finished
    double within = 0;    ///< seconds for compiling and measuring together, half of them to compile; 0: no such limit
    int threads = 0;      ///< to compile on; 0: one for each processor
    size_t generated = 200;  ///< schedules that a search looks at beside the choices of a rule; 0: none
    double least_gain = 0;   ///< by which share another tiling must be faster than today's to take its place
    /// Seconds of one run of a tiling, asked in place of the device's clock.
    std::function<double(const std::string& tiling)> clock = {};
};

struct SkippedTiling {
    std::string tiling, reason;
};
using MeasuredTiling = schedules::TilingTime;
struct TuneResult {
    schedules::TunedRecord record;         ///< the winner's, whose results are right
    std::string today;                     ///< the first of the tunable's tilings
    double today_milliseconds = 0;         ///< 0 if it was skipped
    std::vector<MeasuredTiling> measured;  ///< compiled and run, the fastest first
    std::vector<SkippedTiling> skipped;
    double compile_seconds = 0, measure_seconds = 0, check_seconds = 0;
};
/// Has the record hold the times of all that was measured but what is skipped, as it was found to be wrong.
void put_times_in_record(TuneResult& result);
/// Told of each step: "compile" or "measure", steps done, all steps, what comes next.
using ShowStep = std::function<void(const std::string& phase, int64_t done, int64_t all, const std::string& next)>;

/// Tunes a kernel. All tilings are measured in turns, in bursts over operands that no L2 cache holds, after the clocks
/// have settled; then the best of them again, for longer. On the emulated device each runs once. Throws Error if the
/// target has no tilings of it, or none compiles and computes it, a member of the tunable or the device is missing, and
/// StickyError if a kernel crashed. The winner is never slower than today's tiling, if that is right.
TuneResult tune(const Tunable& tunable, const std::shared_ptr<Device>& device, const TuneOptions& options,
                const ShowStep& show);

}  // namespace tw::tuning

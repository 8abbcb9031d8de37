// How long a launch takes on the device: warm-up, several samples, the median.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "runtime/driver/driver.h"

namespace tw {

struct TimingOptions {
    int warmups = 3;  // runs before the first sample
    int samples = 20;
    int runs_per_sample = 1;                   // between two events; more for kernels of a few microseconds
    std::function<void()> before_sample = {};  // outside of the measured time: rotate buffers, flush the L2
};

struct Timing {
    double median_seconds = 0, min_seconds = 0, max_seconds = 0;  // of one run
    std::vector<double> samples;
};

/// By events on the stream: device time on cuda, wall clock on the emulated device. Throws on the null device.
Timing time_launch(const Launch& launch, const TimingOptions& options = {});

/// The same for a list of launches, run in order, as one.
Timing time_launches(std::span<const Launch> launches, const TimingOptions& options = {});

/// The same for anything that submits work to the stream.
Timing time_on(Device& device, const std::function<void(const Stream&)>& work, const TimingOptions& options = {});

}  // namespace tw

#include "runtime/driver/timer.h"

#include <algorithm>

namespace tw {

Timing time_on(Device& device, const std::function<void(const Stream&)>& work, const TimingOptions& options) {
    if (options.samples < 1 || options.runs_per_sample < 1)
        throw_error(LaunchError, "timing needs at least one sample of one run, not {} of {}", options.samples,
                    options.runs_per_sample);
    Stream stream = device.default_stream();
    Event begin = device.create_event(), end = device.create_event();
    for (int i = 0; i < options.warmups; ++i) work(stream);

    Timing timing;
    for (int sample = 0; sample < options.samples; ++sample) {
        if (options.before_sample) options.before_sample();
        begin.record(stream);
        for (int i = 0; i < options.runs_per_sample; ++i) work(stream);
        end.record(stream);
        end.synchronize();
        timing.samples.push_back(end.seconds_since(begin) / options.runs_per_sample);
    }

    std::vector<double> sorted = timing.samples;
    std::sort(sorted.begin(), sorted.end());
    size_t half = sorted.size() / 2;
    timing.median_seconds = sorted.size() % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    timing.min_seconds = sorted.front();
    timing.max_seconds = sorted.back();
    return timing;
}

Timing time_launches(std::span<const Launch> launches, const TimingOptions& options) {
    if (launches.empty()) throw_error(LaunchError, "time_launches: there is no launch to time");
    auto run_all = [&](const Stream& stream) {
        for (const Launch& launch : launches) launch.run(stream);
    };
    return time_on(*launches.front().kernel().state()->device, run_all, options);
}

Timing time_launch(const Launch& launch, const TimingOptions& options) { return time_launches({&launch, 1}, options); }

}  // namespace tw

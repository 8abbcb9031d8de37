// Runner::time(): bursts of runs on rotating data, in turns with bursts of a copy.
#include <algorithm>

#include "dsl/check_bindings.h"
#include "ops/runner.h"
#include "runtime/driver/copy_bandwidth.h"
#include "runtime/driver/timer.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr int64_t MostSets = 256;

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// Runs of a burst that takes about 15 ms.
int64_t runs_of_burst(double seconds) {
    return static_cast<int64_t>(std::clamp(0.015 / std::max(seconds, 1e-6), 3.0, 200.0));
}

/// Launches that take turns: run() after run() on other data.
class Sets {
public:
    Sets(const Executable& executable, const Arguments& first, double bytes) : executable_(executable) {
        Device& device = *executable.device();
        sets_.push_back(executable.prepare(first));
        const auto most = static_cast<int64_t>(RotatedBytes / std::max(bytes, 1.0));
        for (int64_t set = 1; set <= std::min(most, MostSets - 1); ++set) {
            Arguments copy = first;
            for (auto& [name, buffer] : copy.buffers) {
                buffer = device.allocate(buffer.bytes(), name);
                device.copy(buffer, first.buffers.at(name));
            }
            sets_.push_back(executable.prepare(copy));
            kept_.push_back(std::move(copy));  // launches by tensor maps alone do not keep their buffers
        }
        device.synchronize();
    }

    /// Seconds of one run, of so many in a row.
    double burst(int64_t runs) {
        auto run = [&](const Stream& stream) {
            for (const Launch& launch : sets_[next_++ % sets_.size()]) launch.run(stream);
        };
        return time_on(*executable_.device(), run,
                       {.warmups = 0, .samples = 1, .runs_per_sample = static_cast<int>(runs)})
            .median_seconds;
    }

private:
    const Executable& executable_;
    std::vector<std::vector<Launch>> sets_;
    std::vector<Arguments> kept_;
    size_t next_ = 0;
};

}  // namespace

double Runner::total_bytes() const {
    Bindings numbers{.inputs = {}, .sizes = arguments_.sizes, .scalars = {}};
    double total = 0;
    for (const auto* buffers : {&program().tree().inputs, &program().tree().outputs})
        for (const BufferRef& buffer : *buffers) {
            double elements = 1;
            for (int64_t extent : extents_of(buffer->shape, numbers)) elements *= static_cast<double>(extent);
            total += elements * bytes_of(buffer->type);
        }
    return total;
}

RunTime Runner::time(int rounds) {
    if (rounds < 1) throw_error(Error, "time: {} rounds; it takes at least one", rounds);
    prepare();
    RunTime result;
    result.bytes = total_bytes();
    if (device()->kind() != DeviceKind::Cuda) {
        result.text = fmt::format("not timed: {} runs no kernel as a GPU does; open \"cuda\"", device()->name());
        return result;
    }
    Sets sets(executable_, arguments_, result.bytes);
    CopyBandwidth copy(device(), result.bytes);
    const int64_t runs = runs_of_burst(sets.burst(3)), copies = runs_of_burst(copy.burst(3));
    std::vector<double> seconds, copy_seconds;
    for (int round = 0; round < rounds; ++round) {
        seconds.push_back(sets.burst(runs));
        copy_seconds.push_back(copy.burst(copies));
    }
    result.measured = true;
    result.seconds = median(seconds);
    result.copy_seconds = median(copy_seconds);
    result.text = fmt::format("{:.4f} ms, {:.1f} GB/s, {:.2f} of a copy of {:.1f} MB", result.seconds * 1e3,
                              result.gigabytes_per_second(), result.share_of_copy(), result.bytes * 1e-6);
    return result;
}

}  // namespace tw

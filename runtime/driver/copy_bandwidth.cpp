#include "runtime/driver/copy_bandwidth.h"

#include <algorithm>

#include "runtime/driver/timer.h"

namespace tw {

CopyBandwidth::CopyBandwidth(std::shared_ptr<Device> device, double bytes) : device_(std::move(device)) {
    const int64_t half = std::max<int64_t>(1, static_cast<int64_t>(bytes) / 2);
    const int64_t pairs = std::min<int64_t>(256, 1 + RotatedBytes / (2 * half));
    for (int64_t pair = 0; pair < pairs; ++pair) {
        pairs_.push_back({device_->allocate(half, "from"), device_->allocate(half, "to")});
        pairs_.back().from.fill(static_cast<uint8_t>(pair));
    }
}

double CopyBandwidth::burst(int64_t runs) {
    auto copy = [&](const Stream& stream) {
        const Pair& pair = pairs_[next_++ % pairs_.size()];
        device_->copy(pair.to, pair.from, stream);
    };
    return time_on(*device_, copy, {.warmups = 0, .samples = 1, .runs_per_sample = static_cast<int>(runs)})
        .median_seconds;
}

}  // namespace tw

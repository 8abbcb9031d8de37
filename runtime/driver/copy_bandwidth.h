// The roof of memory-bound kernels: what a copy reaches.
#pragma once
#include <memory>
#include <vector>

#include "runtime/driver/driver.h"

namespace tw {

/// More than any L2 cache holds, several times over: 50 to 60 MB on an H200.
inline constexpr int64_t RotatedBytes = int64_t{200} << 20;

/// Copies on the device that move `bytes` each, half read and half written, on rotating buffers.
class CopyBandwidth {
public:
    CopyBandwidth(std::shared_ptr<Device> device, double bytes);

    /// Seconds of one copy, of so many in a row.
    double burst(int64_t runs);

private:
    struct Pair {
        Buffer from, to;
    };
    std::shared_ptr<Device> device_;
    std::vector<Pair> pairs_;
    size_t next_ = 0;
};

}  // namespace tw

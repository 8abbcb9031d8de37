// Arrays of shared memory that take turns at the same bytes.
#pragma once
#include <map>
#include <vector>

#include "runtime/emulator/threads/core.h"

namespace tw::emulator {

class ArrayLives {
public:
    explicit ArrayLives(Core& core) : core_(core) {}
    void begin() { lives_.clear(); }  // a cluster

    /// The array begins to use its bytes: each thread that goes on to use it says so. The first one to do so, each
    /// time, must come behind all accesses of what was there; from then on nobody has written them.
    void begin_array(void* array, size_t bytes, Stamp site);

private:
    struct Life {
        uint32_t times = 0;            // that it has begun
        std::vector<uint32_t> called;  // by each thread of the cluster
    };

    Core& core_;
    std::map<void*, Life> lives_;
};

}  // namespace tw::emulator

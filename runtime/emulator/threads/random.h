// Cheap random numbers for the scheduler, the same on every machine.
#pragma once
#include <cstdint>

namespace tw::emulator {

/// splitmix64.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t bound) { return next() % bound; }

private:
    uint64_t state_;
};

}  // namespace tw::emulator

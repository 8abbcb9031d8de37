// How many registers a thread has.
#pragma once
#include <algorithm>

namespace tw::emulator {

/// A thread's, that setmaxnreg leaves at least, and that code needs beside what a product holds.
inline constexpr int LeastRegisters = 24;

/// As many as ptxas gives each thread under __launch_bounds__(threads, blocks), blocks of a multiprocessor.
inline int registers_at_entry(unsigned threads, unsigned blocks) {
    constexpr int RegistersOfMultiprocessor = 65536, MaxRegisters = 255;
    return std::min(MaxRegisters, RegistersOfMultiprocessor / int(threads * blocks)) / 8 * 8;
}

}  // namespace tw::emulator

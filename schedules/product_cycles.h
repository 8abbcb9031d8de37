// What models of a product's time share, in clock cycles of an H200.
#pragma once
#include <cmath>
#include <concepts>

namespace tw::schedules {

/// What takes so many cycles each, at the same time: the longest, and some of those that are nearly as long.
template <std::same_as<double>... Cycles>
double together(Cycles... cycles) {
    return std::sqrt(std::sqrt(((cycles * cycles * cycles * cycles) + ...)));
}

/// Of a kernel that copies so many bytes of an operand, which it reads and writes. Fitted to 99 products.
inline double copied_cycles(double bytes) {
    constexpr double launch = 2200, cached = 2600, memory = 2000;  // bytes a cycle of all multiprocessors
    constexpr double cache_holds = 50e6;
    return launch + 2 * bytes / (bytes < cache_holds ? cached : memory);
}

/// Of the kernel that adds so many parts, beside its launch: 4 bytes each are written before and read here.
inline double added_cycles(double parts) {
    constexpr double bytes_a_cycle = 3580;  // of the second level of the cache
    return parts * 8 / bytes_a_cycle;
}

}  // namespace tw::schedules

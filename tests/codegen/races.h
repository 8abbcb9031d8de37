// Races of thread IR by brute force: what every thread touches between two barriers, in one block.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// Two accesses of one element by different threads, one of them a write, with no barrier in between; "" if there are
/// none. Also reports threads that come to different numbers of barriers. Sizes are taken at `size`; conditions and
/// indices must not depend on data.
std::string find_race(const ThreadKernel& kernel, std::array<int64_t, 3> block = {0, 0, 0}, int64_t size = 7);

int count_barriers(const ThreadKernel& kernel);
/// The kernel without its n-th barrier, in program order.
ThreadKernel without_barrier(const ThreadKernel& kernel, int n);

}  // namespace tw::codegen

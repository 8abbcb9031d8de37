// Kernels of random schedules on the emulator.
#pragma once
#include "verify/fuzz.h"

namespace tw::fuzz {

/// All kernels of the jobs in one compilation, then every launch.
std::vector<KernelResult> run_on_emulator(const std::vector<KernelJob>& jobs);

}  // namespace tw::fuzz

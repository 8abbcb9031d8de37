// Kernels of random schedules on the emulator, or on a GPU.
#pragma once
#include "verify/fuzz.h"

namespace tw::fuzz {

/// All kernels of the jobs in one compilation, then every launch.
std::vector<KernelResult> run_on_emulator(const std::vector<KernelJob>& jobs);
/// On what open_device() takes, "emulated" or "cuda:1". Opened where it is called, in each process that runs cases:
/// children of one that has opened a GPU have none. Throws Error, here, if a process cannot open it.
RunKernels run_on_device(const std::string& which, TW_HERE);

}  // namespace tw::fuzz

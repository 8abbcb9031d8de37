// Between devices and the targets that kernels are made for.
#pragma once
#include "dsl/target.h"
#include "runtime/driver/driver.h"

namespace tw {

/// What the emulated and the null device say of themselves: the limits of a target's largest device, for "sm_80",
/// "sm_90a", ...; throws NoDevice for others.
DeviceProperties properties_of(std::string_view arch);

/// The target of kernels for this device: its architecture, with the multiprocessors and the L2 cache that are there.
/// Throws Error if its architecture is none that target() knows.
Target target_of(const Device& device);

}  // namespace tw

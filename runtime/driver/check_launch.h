// The checks of Device::prepare: done once, so that a launch need not do them.
#pragma once
#include <span>

#include "runtime/driver/driver.h"

namespace tw {

/// Throws LaunchError when the device cannot launch this shape. A grid of no blocks is legal and launches nothing.
void check_shape(const DeviceProperties& properties, const Kernel::State& kernel, const LaunchShape& shape);

/// Throws LaunchError when number or sizes differ from the kernel's parameters (where these are known), or when a
/// buffer is empty or of another device.
void check_arguments(const Kernel::State& kernel, std::span<const Argument> arguments);
void check_argument(const Kernel::State& kernel, size_t index, const Argument& argument);

}  // namespace tw

// The CUDA implementation of driver.h.
#pragma once
#include <memory>

#include "runtime/compile/library.h"
#include "runtime/driver/driver.h"

namespace tw {

/// Opens a device through this driver: retains its primary context, which frameworks in the same process share.
/// Throws NoDevice, DriverError.
std::shared_ptr<Device> make_cuda_device(const Driver& driver, int ordinal);

/// What the driver tells of a device, without a context. Throws NoDevice, DriverError.
DeviceProperties cuda_properties(const Driver& driver, int ordinal);

}  // namespace tw

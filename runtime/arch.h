// GPU architectures by name: what the emulated and the null device say of themselves.
#pragma once
#include "runtime/driver.h"

namespace tw {

/// The limits of an architecture (of its largest GPU), for "sm_80", "sm_90a", ...; throws NoDevice for others.
DeviceProperties properties_of(std::string_view arch);

}  // namespace tw

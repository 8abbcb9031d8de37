// The null device: kernels are compiled for its architecture, launches prepared and checked; nothing holds data or
// runs.
#pragma once
#include <memory>
#include <string_view>

#include "runtime/driver/driver.h"

namespace tw {

std::shared_ptr<Device> make_null_device(std::string_view arch);

}  // namespace tw

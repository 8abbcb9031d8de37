// The C++ compiler that the emulator would use.
#pragma once
#include "runtime/driver/doctor.h"

namespace tw {

HostCompilerHealth examine_host_compiler();

}  // namespace tw

// Built, as it says, against headers of another version.
#include <tilewright/kernel.h>

static tw::schedules::KernelInterface interface_of_another_version() {
    tw::schedules::KernelInterface other = tw::schedules::kernel_interface;
    other.version = "0.0.7";
    return other;
}

static const tw::schedules::RegisteredKernel kernel(interface_of_another_version(), "of_another_version.cpp", 3,
                                                    "loaded_old", nullptr);

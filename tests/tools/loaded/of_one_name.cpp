#include <tilewright/kernel.h>

TW_KERNEL("loaded_scale_1000", [](const tw::Target& target) { return tw::Schedule({}, target); });

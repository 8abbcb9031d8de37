#include <tilewright/kernel.h>

TW_KERNEL("softmax_131x37", [](const tw::Target& target) { return tw::Schedule({}, target); });

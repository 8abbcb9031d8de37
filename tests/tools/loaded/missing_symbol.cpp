#include <tilewright/kernel.h>

namespace tw {
Schedule a_function_of_another_version(const Target& target);
}

TW_KERNEL("loaded_missing", tw::a_function_of_another_version);

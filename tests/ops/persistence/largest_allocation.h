// How much is asked for at once.
#pragma once
#include <cstddef>

namespace tw {

void start_watching_allocations();
/// The most bytes that operator new was asked for at once since then.
size_t largest_allocation();

}  // namespace tw

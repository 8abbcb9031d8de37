// Replaces operator new of the whole program, to note what it is asked for.
#include "tests/ops/persistence/largest_allocation.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<size_t> largest_asked_for{0};
}

namespace tw {
void start_watching_allocations() { largest_asked_for = 0; }
size_t largest_allocation() { return largest_asked_for; }
}  // namespace tw

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
    largest_asked_for = std::max<size_t>(largest_asked_for, bytes);
    return std::malloc(std::max<size_t>(bytes, 1));
}
void* operator new(size_t bytes) {
    if (void* memory = operator new(bytes, std::nothrow)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

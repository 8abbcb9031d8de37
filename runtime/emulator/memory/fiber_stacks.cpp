#include "runtime/emulator/memory/fiber_stacks.h"

#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "runtime/emulator/memory/history.h"
#include "runtime/emulator/memory/running.h"
#include "support/error.h"

namespace tw::emulator {
namespace {

constexpr size_t PageBytes = 4096, MaxStacks = 4096, MaxWindows = 16;

void* reserve(size_t bytes) {
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    internal_check(pages != MAP_FAILED, "no address space for {} bytes", bytes);
    return pages;
}

/// Fibers that a finding ends leave their frames as they are, which AddressSanitizer takes for frames in use.
void forget_frames([[maybe_unused]] unsigned char* stack) {
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(stack, StackBytes);
#endif
}

}  // namespace

template <class T>
void* Pages<T>::map(size_t bytes) {
    return reserve(bytes);
}
template <class T>
void Pages<T>::unmap(void* pages, size_t bytes) {
    if (pages) munmap(pages, bytes);
}
template class Pages<Cell>;
template class Pages<ReaderRow>;

FiberStacks::FiberStacks()
    : stacks_(static_cast<unsigned char*>(reserve(MaxStacks * StackBytes))),
      shared_(static_cast<unsigned char*>(reserve(MaxWindows * SharedWindow))) {}

FiberStacks& FiberStacks::get(unsigned num_threads) {
    static FiberStacks* stacks = new FiberStacks;  // never freed: a thread may still run when the process ends
    stacks->guard(num_threads);
    return *stacks;
}

/// The lowest page of each stack faults, rather than that a stack grows into its neighbour.
void FiberStacks::guard(unsigned num_threads) {
    for (; num_guarded_ < num_threads; ++num_guarded_)
        mprotect(stacks_ + num_guarded_ * StackBytes, PageBytes, PROT_NONE);
}

/// Tops are staggered: equal frames at a distance of whole pages would share the sets of the caches.
FiberStacks::Stack FiberStacks::stack(unsigned thread) const {
    unsigned char* begin = stacks_ + thread * StackBytes;
    forget_frames(begin);
    unsigned char* top = begin + StackBytes - thread * 64 % 2048;
    return {reinterpret_cast<uintptr_t>(begin), top, size_t(top - begin) - PageBytes};
}

}  // namespace tw::emulator

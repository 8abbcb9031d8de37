#include "dsl/deep.h"

#include <pthread.h>

#include <exception>

#include "support/error.h"

namespace tw::detail {
namespace {

constexpr size_t bytes_of_level = 8 * 1024;  // of the walk with the largest frames, unoptimised and checked ones too
constexpr size_t bytes_at_end = 1024 * 1024;

thread_local const char* end_of_stack = nullptr;  // of a thread that was started here

struct Walk {
    const std::function<void()>& function;
    size_t bytes;
    std::exception_ptr thrown = {};
};

void* run(void* argument) {
    Walk& walk = *static_cast<Walk*>(argument);
    end_of_stack = static_cast<const char*>(__builtin_frame_address(0)) - walk.bytes;
    try {
        walk.function();
    } catch (...) {
        walk.thrown = std::current_exception();
    }
    return nullptr;
}

}  // namespace

void with_room_for_levels(int levels, const std::function<void()>& walk) {
    size_t bytes = static_cast<size_t>(levels) * bytes_of_level;
    auto here = static_cast<const char*>(__builtin_frame_address(0));
    if (end_of_stack && here > end_of_stack && static_cast<size_t>(here - end_of_stack) >= bytes) return walk();
    Walk on_thread{walk, bytes};
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    int failed = pthread_attr_setstacksize(&attributes, bytes + bytes_at_end);
    if (!failed) failed = pthread_create(&thread, &attributes, run, &on_thread);
    pthread_attr_destroy(&attributes);
    internal_check(!failed, "no stack for an expression {} nodes deep", levels);
    pthread_join(thread, nullptr);
    if (on_thread.thrown) std::rethrow_exception(on_thread.thrown);
}

}  // namespace tw::detail

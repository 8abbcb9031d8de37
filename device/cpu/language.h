// What a CUDA compiler brings along, for the host's compiler. Includes nothing: a standard header costs more to compile
// than the kernel.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__
#define __grid_constant__
#define __cluster_dims__(...)
#define __shared__ only_dynamic_shared_memory_is_emulated_use_shared_memory

#define TW_EXPORT extern "C" __attribute__((visibility("default")))
#define TW_UNSEEN __attribute__((no_sanitize("thread")))                   // its own accesses are not the kernel's
// Not inlined, so that its caller is the kernel; not compiled where no kernel calls it.
#define TW_HOOK inline TW_UNSEEN __attribute__((noinline, visibility("hidden")))
#define TW_INLINE inline __attribute__((always_inline))
#define TW_CALLER __builtin_extract_return_addr(__builtin_return_address(0))

TW_EXPORT tw::emulated::Hooks tw_hooks;           // the emulator fills them in
TW_EXPORT tw::emulated::ThreadState* tw_current;
TW_EXPORT tw::emulated::Unwritten tw_unwritten;
tw::emulated::Hooks tw_hooks;
tw::emulated::ThreadState* tw_current;
tw::emulated::Unwritten tw_unwritten;

// A thread never becomes another one, so that one call in a function is enough: const.
#define TW_STATE extern "C" TW_HOOK __attribute__((const))
TW_STATE tw::emulated::Index3 tw_thread_index() { return tw_current->thread; }
TW_STATE tw::emulated::Index3 tw_block_index() { return tw_current->block; }
TW_STATE tw::emulated::Index3 tw_block_size() { return tw_current->block_size; }
TW_STATE tw::emulated::Index3 tw_grid_size() { return tw_current->grid_size; }
TW_STATE int tw_lane() { return tw_current->lane; }
TW_STATE unsigned char* tw_shared_memory() { return tw_current->shared_memory; }
#define threadIdx (tw_thread_index())
#define blockIdx (tw_block_index())
#define blockDim (tw_block_size())
#define gridDim (tw_grid_size())

extern "C" TW_HOOK void tw_sync_threads() { tw_hooks.sync_threads(TW_CALLER); }
extern "C" TW_HOOK void tw_sync_warp() { tw_hooks.sync_warp(TW_CALLER); }
#define __syncthreads() tw_sync_threads()
#define __syncwarp() tw_sync_warp()

// -fsanitize=thread has the compiler call these before every access of memory that is not surely the thread's own. We
// link them instead of the sanitizer's library.
extern "C" {
#define TW_CALLED __attribute__((used)) TW_HOOK  // the calls are not there yet when the compiler looks for them
TW_CALLED void __tsan_init() {}
TW_CALLED void __tsan_func_entry(void*) {}
TW_CALLED void __tsan_func_exit() {}
#define TW_TSAN(bytes, slot)                                                                                    \
    TW_CALLED void __tsan_read##bytes(void* memory) { tw_hooks.read[slot](memory, TW_CALLER); }                   \
    TW_CALLED void __tsan_write##bytes(void* memory) { tw_hooks.write[slot](memory, TW_CALLER); }                 \
    TW_CALLED void __tsan_unaligned_read##bytes(void* memory) { tw_hooks.read[slot](memory, TW_CALLER); }         \
    TW_CALLED void __tsan_unaligned_write##bytes(void* memory) { tw_hooks.write[slot](memory, TW_CALLER); }
TW_TSAN(1, 0)
TW_TSAN(2, 1)
TW_TSAN(4, 2)
TW_TSAN(8, 3)
TW_TSAN(16, 4)
#undef TW_TSAN
TW_CALLED void __tsan_read_range(void* memory, unsigned long bytes) { tw_hooks.range(memory, bytes, false, TW_CALLER); }
TW_CALLED void __tsan_write_range(void* memory, unsigned long bytes) { tw_hooks.range(memory, bytes, true, TW_CALLER); }
TW_CALLED void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
    tw_hooks.range(from, bytes, false, TW_CALLER);
    tw_hooks.range(to, bytes, true, TW_CALLER);
    return __builtin_memcpy(to, from, bytes);
}
TW_CALLED void* __tsan_memset(void* to, int value, unsigned long bytes) {
    tw_hooks.range(to, bytes, true, TW_CALLER);
    return __builtin_memset(to, value, bytes);
}
#undef TW_CALLED
}

// How the emulator starts a kernel whose parameters it does not know: from a table of their addresses.
namespace tw {
struct f16;
struct bf16;
struct TensorMap;
}
namespace tw::emulated {
template <class T>
constexpr Pointee pointee = Pointee::Value;
template <class T>
constexpr Pointee pointee<T*> = Pointee::Other;
template <class T>
constexpr Pointee pointee<const T*> = pointee<T*>;
template <>
constexpr Pointee pointee<float*> = Pointee::F32;
template <>
constexpr Pointee pointee<double*> = Pointee::F64;
template <>
constexpr Pointee pointee<f16*> = Pointee::F16;
template <>
constexpr Pointee pointee<bf16*> = Pointee::Bf16;
template <>
constexpr Pointee pointee<TensorMap> = Pointee::Map;
template <class... Parameters>
struct Entry {
    struct InOrder {  // braces evaluate from left to right
        TW_INLINE InOrder(void (*kernel)(Parameters...), Parameters... values) { kernel(values...); }
    };
    TW_UNSEEN static void call(void (*kernel)(Parameters...), void** arguments) {
        InOrder{kernel, *static_cast<Parameters*>(*arguments++)...};
    }
    TW_UNSEEN static void pointees(Pointee* result) { ((*result++ = pointee<Parameters>), ...); }
};
template <class... Parameters>
Entry<Parameters...> entry_of(void (*)(Parameters...)) { return {}; }
}  // namespace tw::emulated
#define TW_ENTRY(symbol, kernel)                                                                                    \
    TW_EXPORT TW_UNSEEN void symbol##_call(void** arguments) { tw::emulated::entry_of(kernel).call(kernel, arguments); } \
    TW_EXPORT TW_UNSEEN void symbol##_pointees(tw::emulated::Pointee* result) { tw::emulated::entry_of(kernel).pointees(result); }

// Twins of ../copy_async.cuh.
namespace tw {
namespace emulated {

extern "C" TW_HOOK void tw_copy_async(void* shared, const void* global, int bytes, bool there) {
    tw_hooks.copy_async(shared, global, bytes, there, TW_CALLER);
}
extern "C" TW_HOOK void tw_commit_copies() { tw_hooks.commit_copies(); }
extern "C" TW_HOOK void tw_wait_copies(int pending) { tw_hooks.wait_copies(pending, TW_CALLER); }

}  // namespace emulated

template <int N, class T>
TW_INLINE void copy_async_or_zero(T* shared, const T* global, bool there) {
    constexpr int bytes = N * sizeof(T);
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "copy_async_or_zero moves 4, 8 or 16 bytes");
    emulated::tw_copy_async(shared, global, bytes, there);
}
template <int N, class T>
TW_INLINE void copy_async(T* shared, const T* global) { copy_async_or_zero<N>(shared, global, true); }

TW_INLINE void commit_copies() { emulated::tw_commit_copies(); }
template <int pending>
TW_INLINE void wait_copies() { emulated::tw_wait_copies(pending); }

}  // namespace tw

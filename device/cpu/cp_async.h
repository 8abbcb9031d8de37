// Twins of ../cp_async.cuh.
namespace tw {
namespace emulated {

extern "C" TW_HOOK void tw_copy_async(void* shared, const void* global, int bytes, bool there) {
    tw_hooks.cp_async(shared, global, bytes, there, TW_CALLER);
}
extern "C" TW_HOOK void tw_commit_copies() { tw_hooks.cp_async_commit(); }
extern "C" TW_HOOK void tw_wait_copies(int pending) { tw_hooks.cp_async_wait(pending, TW_CALLER); }

}  // namespace emulated

template <int N, class T>
TW_INLINE void cp_async_or_zero(T* shared, const T* global, bool there) {
    constexpr int bytes = N * sizeof(T);
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp_async_or_zero moves 4, 8 or 16 bytes");
    emulated::tw_copy_async(shared, global, bytes, there);
}
template <int N, class T>
TW_INLINE void cp_async(T* shared, const T* global) {
    cp_async_or_zero<N>(shared, global, true);
}

TW_INLINE void cp_async_commit() { emulated::tw_commit_copies(); }
template <int pending>
TW_INLINE void cp_async_wait() {
    emulated::tw_wait_copies(pending);
}

}  // namespace tw

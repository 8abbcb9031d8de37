//: shared_address
/// The address in the window of shared memory.
__device__ inline unsigned shared_address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

//: cp_async needs shared_address
/// Starts to copy N neighbouring elements, 4, 8 or 16 bytes, from global to shared memory; both are aligned to that.
template <int N, class T>
__device__ inline void cp_async(T* shared, const T* global) {
    constexpr int bytes = N * sizeof(T);
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp_async moves 4, 8 or 16 bytes");
    if constexpr (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :
                     : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global))
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                     :
                     : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "n"(bytes)
                     : "memory");
}

//: cp_async_or_zero needs shared_address
/// The same copy, or zeros where the elements are not there; then `global` may be any address.
template <int N, class T>
__device__ inline void cp_async_or_zero(T* shared, const T* global, bool there) {
    constexpr int bytes = N * sizeof(T);
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp_async_or_zero moves 4, 8 or 16 bytes");
    const int source_bytes = there ? bytes : 0;
    if constexpr (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(source_bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :
                     : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "n"(bytes), "r"(source_bytes)
                     : "memory");
}

//: cp_async_commit
/// The thread's copies since the last commit form a group, an empty one if there are none.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

//: cp_async_wait
/// Until at most the last `pending` groups of this thread are under way. Others see the copied after a barrier.
template <int pending>
__device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
}

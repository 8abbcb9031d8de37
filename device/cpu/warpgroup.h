// Twins of ../warpgroup.cuh, and what those of the wgmma family call.
namespace tw {
namespace emulated {

extern "C" TW_HOOK void tw_wgmma(void* d, const void* a_registers, unsigned long long a, unsigned long long b, int n,
                                 int k, MatrixType a_type, MatrixType b_type, int flags) {
    tw_hooks.wgmma({n, k, a_type, b_type, d, a_registers, a, b, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0,
                    (flags & 8) != 0},
                   TW_CALLER);
}
extern "C" TW_HOOK void tw_wgmma_fence() { tw_hooks.wgmma_fence(TW_CALLER); }
extern "C" TW_HOOK void tw_wgmma_commit() { tw_hooks.wgmma_commit(TW_CALLER); }
extern "C" TW_HOOK void tw_wgmma_wait(int pending) { tw_hooks.wgmma_wait(pending, TW_CALLER); }
extern "C" TW_HOOK void tw_set_registers(int count, bool grows) { tw_hooks.set_registers(count, grows, TW_CALLER); }
extern "C" TW_HOOK bool tw_elect_one() { return tw_hooks.elect_one(TW_CALLER); }
TW_STATE unsigned long tw_shared_offset(const void* shared) {
    return (unsigned long)((const unsigned char*)shared - tw_current->shared_memory);
}

}  // namespace emulated

TW_INLINE void wgmma_fence() { emulated::tw_wgmma_fence(); }
TW_INLINE void wgmma_commit() { emulated::tw_wgmma_commit(); }
template <int pending>
TW_INLINE void wgmma_wait() {
    emulated::tw_wgmma_wait(pending);
}
template <class D, int N>
TW_INLINE void wgmma_fence_operand(D (&)[N]) {}
template <int N>
TW_INLINE void leave_undefined(float (&d)[N]) {
    for (int i = 0; i < N; ++i) d[i] = __builtin_nanf("");
}
template <int N>
TW_INLINE void leave_undefined(int (&d)[N]) {
    for (int i = 0; i < N; ++i) d[i] = (int)0x80000001;
}

TW_INLINE bool always() { return true; }

TW_INLINE unsigned long long matrix_descriptor(const void* shared, int swizzle, int leading_bytes, int stride_bytes,
                                               int further = 0) {
    const unsigned long long code = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    return ((emulated::tw_shared_offset(shared) + (unsigned)further) & 0x3ffff) >> 4 |
           (unsigned long long)(leading_bytes >> 4) << 16 | (unsigned long long)(stride_bytes >> 4) << 32 | code << 62;
}

template <int registers>
TW_INLINE void setmaxnreg_dec() {
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "multiples of 8 from 24 to 256");
    emulated::tw_set_registers(registers, false);
}
template <int registers>
TW_INLINE void setmaxnreg_inc() {
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "multiples of 8 from 24 to 256");
    emulated::tw_set_registers(registers, true);
}
TW_INLINE bool elect_one() { return emulated::tw_elect_one(); }

}  // namespace tw

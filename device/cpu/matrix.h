// Twins of ../matrix.cuh and ../mma.cuh. Register arrays lie on the thread's stack; the emulator gets their addresses.
namespace tw {
namespace emulated {

template <class T>
constexpr MatrixType matrix_type = MatrixType::s8;
template <>
constexpr MatrixType matrix_type<f16> = MatrixType::f16;
template <>
constexpr MatrixType matrix_type<bf16> = MatrixType::bf16;
template <>
constexpr MatrixType matrix_type<float> = MatrixType::tf32;
template <>
constexpr MatrixType matrix_type<e4m3> = MatrixType::e4m3;
template <>
constexpr MatrixType matrix_type<e5m2> = MatrixType::e5m2;

extern "C" TW_HOOK void tw_ldmatrix(void* registers, const void* row, int count, bool transposed) {
    tw_hooks.ldmatrix(registers, row, count, transposed, TW_CALLER);
}
extern "C" TW_HOOK void tw_stmatrix(void* row, const void* registers, int count, bool transposed) {
    tw_hooks.stmatrix(row, registers, count, transposed, TW_CALLER);
}
extern "C" TW_HOOK void tw_mma(void* d, const void* a, const void* b, int k, MatrixType a_type, MatrixType b_type,
                               bool negated) {
    tw_hooks.mma(d, a, b, k, a_type, b_type, negated, TW_CALLER);
}

template <int count>
constexpr bool is_matrix_count = count == 1 || count == 2 || count == 4;

template <int k, class A, class B, class D>
TW_INLINE void mma(D* d, const A* a, const B* b) {
    tw_mma(d, a, b, k, matrix_type<A>, matrix_type<B>, false);
}
template <int k, class T>
TW_INLINE void mma_negated(float* d, const T* a, const T* b) {
    tw_mma(d, a, b, k, matrix_type<T>, matrix_type<T>, true);
}

}  // namespace emulated

template <int count, class T>
TW_INLINE void pack_registers(unsigned* words, const T* elements) {
    for (int i = 0; i < count; ++i) __builtin_memcpy(&words[i], elements + i * (4 / (int)sizeof(T)), 4);
}
template <int count, class T>
TW_INLINE void ldmatrix(T* registers, const T* row) {
    static_assert(emulated::is_matrix_count<count>, "ldmatrix loads 1, 2 or 4 matrices");
    emulated::tw_ldmatrix(registers, row, count, false);
}
template <int count, class T>
TW_INLINE void ldmatrix_trans(T* registers, const T* row) {
    static_assert(emulated::is_matrix_count<count>, "ldmatrix_trans loads 1, 2 or 4 matrices");
    static_assert(sizeof(T) == 2, "ldmatrix_trans moves elements of 2 bytes");
    emulated::tw_ldmatrix(registers, row, count, true);
}
template <int count, class T>
TW_INLINE void stmatrix(T* row, const T* registers) {
    static_assert(emulated::is_matrix_count<count>, "stmatrix stores 1, 2 or 4 matrices");
    emulated::tw_stmatrix(row, registers, count, false);
}
template <int count, class T>
TW_INLINE void stmatrix_trans(T* row, const T* registers) {
    static_assert(emulated::is_matrix_count<count>, "stmatrix_trans stores 1, 2 or 4 matrices");
    static_assert(sizeof(T) == 2, "stmatrix_trans moves elements of 2 bytes");
    emulated::tw_stmatrix(row, registers, count, true);
}

TW_INLINE void mma_m16n8k16(float* d, const bf16* a, const bf16* b) { emulated::mma<16>(d, a, b); }
TW_INLINE void mma_m16n8k16(float* d, const f16* a, const f16* b) { emulated::mma<16>(d, a, b); }
TW_INLINE void mma_m16n8k8(float* d, const bf16* a, const bf16* b) { emulated::mma<8>(d, a, b); }
TW_INLINE void mma_m16n8k8(float* d, const f16* a, const f16* b) { emulated::mma<8>(d, a, b); }
TW_INLINE void mma_m16n8k8(float* d, const float* a, const float* b) { emulated::mma<8>(d, a, b); }
TW_INLINE void mma_m16n8k4(float* d, const float* a, const float* b) { emulated::mma<4>(d, a, b); }
TW_INLINE void mma_m16n8k32(int* d, const signed char* a, const signed char* b) { emulated::mma<32>(d, a, b); }
TW_INLINE void mma_m16n8k32(float* d, const e4m3* a, const e4m3* b) { emulated::mma<32>(d, a, b); }
TW_INLINE void mma_m16n8k32(float* d, const e4m3* a, const e5m2* b) { emulated::mma<32>(d, a, b); }
TW_INLINE void mma_m16n8k32(float* d, const e5m2* a, const e4m3* b) { emulated::mma<32>(d, a, b); }
TW_INLINE void mma_m16n8k32(float* d, const e5m2* a, const e5m2* b) { emulated::mma<32>(d, a, b); }
template <class T>
TW_INLINE void mma_m16n8k16_negated(float* d, const T* a, const T* b) {
    emulated::mma_negated<16>(d, a, b);
}
template <class T>
TW_INLINE void mma_m16n8k8_negated(float* d, const T* a, const T* b) {
    emulated::mma_negated<8>(d, a, b);
}
template <class T>
TW_INLINE void mma_m16n8k4_negated(float* d, const T* a, const T* b) {
    emulated::mma_negated<4>(d, a, b);
}
template <class T>
TW_INLINE void mma_m16n8k32_negated(float* d, const T* a, const T* b) {
    emulated::mma_negated<32>(d, a, b);
}

}  // namespace tw

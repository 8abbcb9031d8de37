//: mma_m16n8k16_bf16 needs bf16 pack_register
/// d[16, 8] += a[16, k] * b[k, 8] over a warp, each lane with PTX's part of them in registers.
__device__ inline void mma_m16n8k16(float* d, const bf16* a, const bf16* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 2)), "r"(pack_register(a + 4)), "r"(pack_register(a + 6)),
          "r"(pack_register(b)), "r"(pack_register(b + 2)));
}

//: mma_m16n8k16_f16 needs f16 pack_register
__device__ inline void mma_m16n8k16(float* d, const f16* a, const f16* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 2)), "r"(pack_register(a + 4)), "r"(pack_register(a + 6)),
          "r"(pack_register(b)), "r"(pack_register(b + 2)));
}

//: mma_m16n8k16 common needs mma_m16n8k16_bf16 mma_m16n8k16_f16

//: mma_m16n8k8_bf16 needs bf16 pack_register
__device__ inline void mma_m16n8k8(float* d, const bf16* a, const bf16* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 2)), "r"(pack_register(b)));
}

//: mma_m16n8k8_f16 needs f16 pack_register
__device__ inline void mma_m16n8k8(float* d, const f16* a, const f16* b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(pack_register(a)), "r"(pack_register(a + 2)), "r"(pack_register(b)));
}

//: mma_m16n8k8_tf32 needs bits
/// The hardware leaves out the last 13 bits of the operands.
__device__ inline void mma_m16n8k8(float* d, const float* a, const float* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(float_bits(a[0])), "r"(float_bits(a[1])), "r"(float_bits(a[2])), "r"(float_bits(a[3])),
          "r"(float_bits(b[0])), "r"(float_bits(b[1])));
}

//: mma_m16n8k8 common needs mma_m16n8k8_bf16 mma_m16n8k8_f16 mma_m16n8k8_tf32

//: mma_m16n8k4_tf32 needs bits
__device__ inline void mma_m16n8k4(float* d, const float* a, const float* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(float_bits(a[0])), "r"(float_bits(a[1])), "r"(float_bits(b[0])));
}

//: mma_m16n8k4 common needs mma_m16n8k4_tf32

//: mma_m16n8k32_s8 needs pack_register
__device__ inline void mma_m16n8k32(int* d, const signed char* a, const signed char* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 4)), "r"(pack_register(a + 8)), "r"(pack_register(a + 12)),
          "r"(pack_register(b)), "r"(pack_register(b + 4)));
}

//: mma_m16n8k32_fp8 needs e4m3 e5m2 pack_register
/// sm_89 and later.
__device__ inline void mma_m16n8k32(float* d, const e4m3* a, const e4m3* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 4)), "r"(pack_register(a + 8)), "r"(pack_register(a + 12)),
          "r"(pack_register(b)), "r"(pack_register(b + 4)));
}
__device__ inline void mma_m16n8k32(float* d, const e4m3* a, const e5m2* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 4)), "r"(pack_register(a + 8)), "r"(pack_register(a + 12)),
          "r"(pack_register(b)), "r"(pack_register(b + 4)));
}
__device__ inline void mma_m16n8k32(float* d, const e5m2* a, const e4m3* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 4)), "r"(pack_register(a + 8)), "r"(pack_register(a + 12)),
          "r"(pack_register(b)), "r"(pack_register(b + 4)));
}
__device__ inline void mma_m16n8k32(float* d, const e5m2* a, const e5m2* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 4)), "r"(pack_register(a + 8)), "r"(pack_register(a + 12)),
          "r"(pack_register(b)), "r"(pack_register(b + 4)));
}

//: mma_m16n8k32 common needs mma_m16n8k32_s8 mma_m16n8k32_fp8

//: flip_signs needs pack_register unpack_register
/// Floats of 1, 2 or 4 bytes, as many as fill registers, with the other sign each, bit for bit.
template <int count, class T>
__device__ inline void flip_signs(T* flipped, const T* elements) {
    constexpr int each = 4 / (int)sizeof(T);
    constexpr unsigned signs = each == 4 ? 0x80808080u : each == 2 ? 0x80008000u : 0x80000000u;
#pragma unroll
    for (int i = 0; i < count; i += each) unpack_register(flipped + i, pack_register(elements + i) ^ signs);
}

//: mma_m16n8k16_negated needs mma_m16n8k16 flip_signs
/// d[16, 8] -= a[16, k] * b[k, 8]: of floats, as exact as the sum.
template <class T>
__device__ inline void mma_m16n8k16_negated(float* d, const T* a, const T* b) {
    T flipped[4];
    flip_signs<4>(flipped, b);
    mma_m16n8k16(d, a, flipped);
}

//: mma_m16n8k8_negated needs mma_m16n8k8 flip_signs
template <class T>
__device__ inline void mma_m16n8k8_negated(float* d, const T* a, const T* b) {
    T flipped[2];
    flip_signs<2>(flipped, b);
    mma_m16n8k8(d, a, flipped);
}

//: mma_m16n8k4_negated needs mma_m16n8k4 flip_signs
template <class T>
__device__ inline void mma_m16n8k4_negated(float* d, const T* a, const T* b) {
    T flipped[1];
    flip_signs<1>(flipped, b);
    mma_m16n8k4(d, a, flipped);
}

//: mma_m16n8k32_negated needs mma_m16n8k32 flip_signs
template <class T>
__device__ inline void mma_m16n8k32_negated(float* d, const T* a, const T* b) {
    T flipped[8];
    flip_signs<8>(flipped, b);
    mma_m16n8k32(d, a, flipped);
}

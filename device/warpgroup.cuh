//: wgmma_fence
/// Before the first wgmma, and between other uses of its registers and the next one.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

//: wgmma_commit
/// The warpgroup's wgmma since the last commit form a group.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

//: wgmma_wait
/// Until at most the last `pending` groups are under way; registers and shared memory of the others are free.
template <int pending>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(pending) : "memory");
}

//: wgmma_fence_operand_f32
/// The compiler moves no use of these registers across.
template <int N>
__device__ inline void wgmma_fence_operand(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i]) : : "memory");
}

//: wgmma_fence_operand_i32
/// The compiler moves no use of these registers across.
template <int N>
__device__ inline void wgmma_fence_operand(int (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i]) : : "memory");
}

//: wgmma_fence_operand common needs wgmma_fence_operand_f32 wgmma_fence_operand_i32

//: leave_undefined_f32
/// No instruction: what these registers hold is not needed any more.
template <int N>
__device__ inline void leave_undefined(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "=f"(d[i]));
}

//: leave_undefined_i32
/// No instruction: what these registers hold is not needed any more.
template <int N>
__device__ inline void leave_undefined(int (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "=r"(d[i]));
}

//: leave_undefined common needs leave_undefined_f32 leave_undefined_i32

//: always
/// True, but the compiler does not know: it leaves what stands behind `if (always())` there, and does not do the
/// arithmetic of many such parts together, ahead of the first one's barriers.
__device__ inline bool always() { return blockDim.y == 1; }

//: matrix_descriptor needs shared_address
/// Where wgmma finds an operand: its first byte, the bytes of a swizzle's line (128, 64, 32, or 0: none), and the two
/// distances in bytes that it steps by. With `further` bytes, a multiple of 16, it begins so much later; descriptors
/// that differ in that alone cost one addition each.
__device__ inline unsigned long long matrix_descriptor(const void* shared, int swizzle, int leading_bytes,
                                                       int stride_bytes, int further = 0) {
    const unsigned code = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    const unsigned begin = (shared_address(shared) & 0x3ffff) >> 4 | (unsigned)(leading_bytes >> 4) << 16;
    const unsigned low = begin + (further >> 4);
    return low | (unsigned long long)((unsigned)(stride_bytes >> 4) | code << 30) << 32;
}

//: setmaxnreg_dec
/// By a whole warpgroup: it keeps this many registers a thread, a multiple of 8 from 24 to 256.
template <int registers>
__device__ inline void setmaxnreg_dec() {
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "multiples of 8 from 24 to 256");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(registers));
}

//: setmaxnreg_inc
/// Takes registers; waits until others have given up enough.
template <int registers>
__device__ inline void setmaxnreg_inc() {
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "multiples of 8 from 24 to 256");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(registers));
}

//: elect_one
/// True in one lane of the warp, always the same one.
__device__ inline bool elect_one() {
    unsigned elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected;
}

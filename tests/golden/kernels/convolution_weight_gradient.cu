// d_w[i, j, u, v] = cast(bf16, sum_{n, p, q} cast(f32, dy[n, p, q, i]) * cast(f32, select(1 <= j + p && j + p < 29 &&
//     1 <= u + q && u + q < 29, x[n, p * 1 + j * 1 - 1, q * 1 + u * 1 - 1, v], 0.0)))
// inputs    dy bf16 [64, 28, 28, 128], x bf16 [64, 28, 28, 128]
// schedule  [0] Loop pixel = s.fuse({n, p, q}, "pixel");
//           [1] auto [part, in_part] = s.split(pixel, 6272, Tail::Mask, {"part", "in_part"});
//           [2] Stage d_w_partial = s.rfactor(d_w, part);
//           [3] Loop all = s.fuse({i, j, u, v}, "all");
//           [4] auto [block, in_block] = s.split(all, 1024, Tail::Mask, {"block", "in_block"});
//           [5] auto [t, element] = s.split(in_block, 4, {"t", "element"});
//           [6] s.bind(part_d_w, unrolled);
//           [7] s.order({block, t, part_d_w, element});
//           [8] s.bind(block, grid.x);
//           [9] s.bind(t, thread);
//           [10] s.bind(element, vector);
//           [11] auto [row_tile, row] = s.split(i_d_w_partial, 128, Tail::Mask, {"row_tile", "row"});
//           [12] auto [warpgroup_m, m] = s.split(row, 64, {"warpgroup_m", "m"});
//           [13] auto [column_tile, n_2] = s.split(v_d_w_partial, 128, Tail::Mask, {"column_tile", "n"});
//           [14] auto [step, k] = s.split(in_part, 64, Tail::Mask, {"step", "k"});
//           [15] s.order({part, row_tile, column_tile, j_d_w_partial, u_d_w_partial, warpgroup_m, step, m, n_2, k});
//           [16] s.persistent({part, row_tile, column_tile, j_d_w_partial, u_d_w_partial}, {.blocks = 132});
//           [17] s.bind(warpgroup_m, warpgroup);
//           [18] Stage dy_shared = s.stage(d_w_partial, dy, Memory::Shared, step, As::Matrix);
//           [19] Stage x_shared = s.stage(d_w_partial, x, Memory::Shared, step, As::Matrix);
//           [20] s.mma(d_w_partial, wgmma, {.m = m, .n = n_2, .k = k});
//           [21] s.pipeline(step, {.stages = 4, .in_flight = 1});
//           [22] s.roles({{"math", warpgroups(2), registers(232), {d_w_partial}}, {"load", warps(1), registers(40),
//     {dy_shared, x_shared}}});
// 384 threads, 132096 bytes of shared memory

// ---- vocabulary: what the GPU has -----------------------------------------------------------------------------------
namespace tw {
struct bf16 { unsigned short bits; };

/// Until all that was launched before this kernel has finished and its results are visible.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Elements that move together.
template <int N, class T>
struct alignas(N * sizeof(T)) Vector { T elements[N]; };

/// N neighbouring elements by one access.
template <int N, class T>
__device__ inline void store(T* memory, const T* registers) {
    Vector<N, T> vector;
#pragma unroll
    for (int i = 0; i < N; ++i) vector.elements[i] = registers[i];
    *reinterpret_cast<Vector<N, T>*>(memory) = vector;
}

/// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return *reinterpret_cast<T*>(dynamic_shared);
}

/// The address in the window of shared memory.
__device__ inline unsigned shared_address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

/// Elements of 4 bytes together as one register, the first lowest.
template <class T>
__device__ inline unsigned pack_register(const T* elements) {
    if constexpr (sizeof(T) == 1) {  // halves that conversions have made, no bytes
        unsigned short halves[2];
        memcpy(&halves[0], elements, 2);
        memcpy(&halves[1], elements + 2, 2);
        return halves[0] | (unsigned)halves[1] << 16;
    } else {
        Vector<4 / sizeof(T), T> vector;
#pragma unroll
        for (int i = 0; i < 4 / (int)sizeof(T); ++i) vector.elements[i] = elements[i];
        return reinterpret_cast<const unsigned&>(vector);
    }
}

/// The elements of 4 bytes that pack_register puts together.
template <class T>
__device__ inline void unpack_register(T* elements, unsigned bits) {
    const Vector<4 / sizeof(T), T> vector = reinterpret_cast<const Vector<4 / sizeof(T), T>&>(bits);
#pragma unroll
    for (int i = 0; i < 4 / (int)sizeof(T); ++i) elements[i] = vector.elements[i];
}

/// In shared memory: counts, phase by phase, arrivals and bytes of copies.
struct Barrier {
    unsigned long long state;
};

/// By one thread, before all others know of it; each phase takes so many arrivals.
__device__ inline void mbarrier_init(Barrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

/// Copies and other blocks of the cluster find the barriers that this thread has made, once a barrier lies between.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// What this thread has done is seen by those who wait for the phase.
__device__ inline void mbarrier_arrive(Barrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(shared_address(&barrier)) : "memory");
}

/// Arrives; the phase also takes so many bytes.
__device__ inline void mbarrier_expect_tx(Barrier& barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}

/// Until the phase of this parity is complete. The first one is 0; before it, that of parity 1 counts as complete.
__device__ inline void mbarrier_wait(Barrier& barrier, unsigned phase) {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
        "@complete bra done;\n"
        "bra again;\n"
        "done: }"
        :
        : "r"(shared_address(&barrier)), "r"(phase)
        : "memory");
}

/// Describes a tensor in global memory and the boxes of it that are copied; encoded by the host.
struct alignas(64) TensorMap {
    char opaque[128];
};

/// Has the map brought near, so that the first copy by it waits less.
__device__ inline void prefetch_tensor_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

template <int rank = 4>
__device__ inline void tma_load_im2col(void* to, const TensorMap& map, int c, int w, int h, int n, int offset_w,
                                       int offset_h, Barrier& barrier) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(shared_address(&barrier)),
          "h"((unsigned short)offset_w), "h"((unsigned short)offset_h)
        : "memory");
}

/// Before the first wgmma, and between other uses of its registers and the next one.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// The warpgroup's wgmma since the last commit form a group.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Until at most the last `pending` groups are under way; registers and shared memory of the others are free.
template <int pending>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(pending) : "memory");
}

/// The compiler moves no use of these registers across.
template <int N>
__device__ inline void wgmma_fence_operand(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i]) : : "memory");
}

/// No instruction: what these registers hold is not needed any more.
template <int N>
__device__ inline void leave_undefined(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "=f"(d[i]));
}

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

/// By a whole warpgroup: it keeps this many registers a thread, a multiple of 8 from 24 to 256.
template <int registers>
__device__ inline void setmaxnreg_dec() {
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "multiples of 8 from 24 to 256");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(registers));
}

/// Takes registers; waits until others have given up enough.
template <int registers>
__device__ inline void setmaxnreg_inc() {
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "multiples of 8 from 24 to 256");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(registers));
}

/// The value of the lane whose number differs by these bits.
template <class T>
__device__ inline T shuffle_xor(T value, int lane_bits) { return __shfl_xor_sync(0xffffffff, value, lane_bits); }

/// Of `lanes` neighbouring lanes, 2 or 4, each has as many words of two elements: lane i gets word i of each, in their
/// order.
template <int lanes, class T>
__device__ inline void transpose_lanes(T* elements) {
    constexpr int registers = sizeof(T) / 2;  // of a word
    unsigned words[lanes][registers];
    const int lane = threadIdx.x % lanes;
#pragma unroll
    for (int i = 0; i < lanes * registers; ++i)
        words[i / registers][i % registers] = pack_register(elements + i * (4 / (int)sizeof(T)));
#pragma unroll
    for (int bit = 1; bit < lanes; bit *= 2)
#pragma unroll
        for (int i = 0; i < lanes; ++i)
#pragma unroll
            for (int r = 0; r < registers; ++r) {
                if (i & bit) continue;
                unsigned &low = words[i][r], &high = words[i | bit][r];
                const unsigned other = shuffle_xor(lane & bit ? low : high, bit);
                if (lane & bit)
                    low = other;
                else
                    high = other;
            }
#pragma unroll
    for (int i = 0; i < lanes * registers; ++i)
        unpack_register(elements + i * (4 / (int)sizeof(T)), words[i / registers][i % registers]);
}

/// d[64, 128] = a[64, 16] * b[16, 128], plus d where it accumulates; asynchronous, by a warpgroup.
template <bool transpose_a = false, bool transpose_b = false>
__device__ inline void wgmma_m64n128k16_bf16(float (&d)[64], unsigned long long a, unsigned long long b,
                                             bool accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, %67, %68; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"((int)accumulate), "n"((int)transpose_a), "n"((int)transpose_b));
}
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

struct Shared {
    alignas(1024) tw::bf16 dy_shared[4][1][2][64][64];
    alignas(1024) tw::bf16 x_shared[4][1][1][1][2][64][64];
    alignas(16) tw::Barrier step_full[4];
    alignas(16) tw::Barrier step_empty[4];
};

extern "C" __global__ void __launch_bounds__(384, 1)
d_w_partial_kernel(float* __restrict__ d_w_partial,
                   const __grid_constant__ tw::TensorMap dy_shared_map,
                   const __grid_constant__ tw::TensorMap x_shared_map) {
    Shared& shared = tw::shared_memory<Shared>();
    const int tile = blockIdx.x;
    const int thread = threadIdx.x;
    if (thread == 0) {
        for (int stage = 0; stage < 4; ++stage) tw::mbarrier_init(shared.step_full[stage], 1);
        for (int stage = 0; stage < 4; ++stage) tw::mbarrier_init(shared.step_empty[stage], 2);
        tw::fence_mbarrier_init();
        tw::prefetch_tensor_map(dy_shared_map);
        tw::prefetch_tensor_map(x_shared_map);
    }
    __syncthreads();
    tw::griddepcontrol_wait();

    const int warpgroup_thread = thread % 128;
    if (threadIdx.x >= 256) {  // [22] role load: threads 256 to 383
        const int load_thread = threadIdx.x - 256;
        tw::setmaxnreg_dec<40>();
        if (load_thread == 0) {
            const int u = tile % 3;
            const int j = tile / 3 % 3;
            const int part = tile / 9;
            #pragma unroll 1
            for (int step = 0; step < 98; ++step) {
                const int stage = step % 4;
                tw::mbarrier_wait(shared.step_empty[stage], (step / 4 + 1) % 2);
                // [18] dy_shared, dy_shared, x_shared, x_shared: load
                tw::mbarrier_expect_tx(shared.step_full[stage], 32768);
                const int index = step * 2 % 7;
                const int index_2 = step * 16 / 7 % 28;
                const int index_3 = step * 4 / 49;
                tw::tma_load_im2col(&shared.dy_shared[stage][0][0][0][0], dy_shared_map, 0, index * 4, index_2,
                                    part * 8 + index_3, 0, 0, shared.step_full[stage]);
                tw::tma_load_im2col(&shared.dy_shared[stage][0][1][0][0], dy_shared_map, 64, index * 4, index_2,
                                    part * 8 + index_3, 0, 0, shared.step_full[stage]);
                tw::tma_load_im2col(&shared.x_shared[stage][0][0][0][0][0][0], x_shared_map, 0, index * 4 - 1,
                                    index_2 - 1, part * 8 + index_3, u, j, shared.step_full[stage]);
                tw::tma_load_im2col(&shared.x_shared[stage][0][0][0][1][0][0], x_shared_map, 64, index * 4 - 1,
                                    index_2 - 1, part * 8 + index_3, u, j, shared.step_full[stage]);
            }
        }
    } else {  // [22] role math: threads 0 to 255
        tw::setmaxnreg_inc<232>();
        const int warpgroup_m = thread / 128;
        const int warp = thread / 32 % 4;
        const int lane_row = thread / 4 % 8;
        const int lane_column = thread % 4;
        const int u = tile % 3;
        const int j = tile / 3 % 3;
        const int part = tile / 9;
        float d_w_partial_sum[64];
        tw::leave_undefined(d_w_partial_sum);
        for (int step = 0; step < 98; ++step) {
            const int stage = step % 4;
            tw::mbarrier_wait(shared.step_full[stage], step / 4 % 2);
            tw::wgmma_fence_operand(d_w_partial_sum);
            tw::wgmma_fence();
            // [20] d_w_partial: multiply
            #pragma unroll
            for (int k_step = 0; k_step < 4; ++k_step) {
                tw::wgmma_m64n128k16_bf16<1, 1>(d_w_partial_sum,
                    tw::matrix_descriptor(&shared.dy_shared[stage][0][warpgroup_m][0][0], 128, 8192, 1024,
                                          k_step * 2048),
                    tw::matrix_descriptor(&shared.x_shared[stage][0][0][0][0][0][0], 128, 8192, 1024, k_step * 2048),
                    0 < step || 0 < k_step);
            }
            tw::wgmma_commit();
            tw::wgmma_wait<1>();
            if (1 <= step && warpgroup_thread == 0) tw::mbarrier_arrive(shared.step_empty[(step + 3) % 4]);
        }
        tw::wgmma_wait<0>();
        tw::wgmma_fence_operand(d_w_partial_sum);
        if (warpgroup_thread == 0) tw::mbarrier_arrive(shared.step_empty[1]);
        const int lane_column_in_group = lane_column % 2;
        const int lane_column_group = lane_column / 2;
        const int d_w_partial_offset =
            part * 147456 + warpgroup_m * 73728 + warp * 18432 + lane_row * 1152 + j * 384 + u * 128 +
            lane_column_in_group * 8 + lane_column_group * 4;
        // [2] d_w_partial
        #pragma unroll
        for (int n_tile_2 = 0; n_tile_2 < 8; ++n_tile_2) {
            #pragma unroll
            for (int m_half = 0; m_half < 2; ++m_half) {
                float d_w_partial_out[4];
                #pragma unroll
                for (int n_tile = 0; n_tile < 2; ++n_tile) {
                    #pragma unroll
                    for (int n_pair = 0; n_pair < 2; ++n_pair) {
                        d_w_partial_out[n_tile * 2 + n_pair] =
                            d_w_partial_sum[n_tile_2 * 8 + n_tile * 4 + m_half * 2 + n_pair];
                    }
                }
                tw::transpose_lanes<2>(d_w_partial_out);
                tw::store<4>(&d_w_partial[d_w_partial_offset + n_tile_2 * 16 + m_half * 9216], d_w_partial_out);
            }
        }
    }
}

// d_w[i, j, u, v] = cast(bf16, sum_{n, p, q} cast(f32, dy[n, p, q, i]) * cast(f32, select(1 <= j + p && j + p < 29 &&
//     1 <= u + q && u + q < 29, x[n, p * 1 + j * 1 - 1, q * 1 + u * 1 - 1, v], 0.0)))
// inputs    dy bf16 [64, 28, 28, 128], x bf16 [64, 28, 28, 128]
// schedule  [0] Loop pixel = s.fuse({n, p, q}, "pixel");
//           [1] auto [part, in_part] = s.split(pixel, 6272, Tail::Mask, {"part", "in_part"});
//           [2] Stage d_w_partial = s.rfactor(d_w, part);
//           [3] Loop all = s.fuse({i, j, u, v}, "all");
//           [4] auto [block, in_block] = s.split(all, 1024, Tail::Mask, {"block", "in_block"});
//           [5] auto [t, element] = s.split(in_block, 4, {"t", "element"});
//           [6] s.bind(part_d_w, unrolled);
//           [7] s.order({block, t, part_d_w, element});
//           [8] s.bind(block, grid.x);
//           [9] s.bind(t, thread);
//           [10] s.bind(element, vector);
//           [11] auto [row_tile, row] = s.split(i_d_w_partial, 128, Tail::Mask, {"row_tile", "row"});
//           [12] auto [warpgroup_m, m] = s.split(row, 64, {"warpgroup_m", "m"});
//           [13] auto [column_tile, n_2] = s.split(v_d_w_partial, 128, Tail::Mask, {"column_tile", "n"});
//           [14] auto [step, k] = s.split(in_part, 64, Tail::Mask, {"step", "k"});
//           [15] s.order({part, row_tile, column_tile, j_d_w_partial, u_d_w_partial, warpgroup_m, step, m, n_2, k});
//           [16] s.persistent({part, row_tile, column_tile, j_d_w_partial, u_d_w_partial}, {.blocks = 132});
//           [17] s.bind(warpgroup_m, warpgroup);
//           [18] Stage dy_shared = s.stage(d_w_partial, dy, Memory::Shared, step, As::Matrix);
//           [19] Stage x_shared = s.stage(d_w_partial, x, Memory::Shared, step, As::Matrix);
//           [20] s.mma(d_w_partial, wgmma, {.m = m, .n = n_2, .k = k});
//           [21] s.pipeline(step, {.stages = 4, .in_flight = 1});
//           [22] s.roles({{"math", warpgroups(2), registers(232), {d_w_partial}}, {"load", warps(1), registers(40),
//     {dy_shared, x_shared}}});
// 256 threads

// ---- vocabulary: what the GPU has -----------------------------------------------------------------------------------
namespace tw {
struct bf16 { unsigned short bits; };

__device__ inline bf16 to_bf16(float x) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

/// Until all that was launched before this kernel has finished and its results are visible.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Elements that move together.
template <int N, class T>
struct alignas(N * sizeof(T)) Vector { T elements[N]; };

/// N neighbouring elements by one access: of 2 bytes as words, so that what becomes of halves needs none taken out.
template <int N, class T>
__device__ inline void load(T* registers, const T* memory) {
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        const Vector<N / 2, unsigned> words = *reinterpret_cast<const Vector<N / 2, unsigned>*>(memory);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const unsigned short half = static_cast<unsigned short>(words.elements[i / 2] >> i % 2 * 16);
            registers[i] = *reinterpret_cast<const T*>(&half);
        }
    } else {
        const Vector<N, T> vector = *reinterpret_cast<const Vector<N, T>*>(memory);
#pragma unroll
        for (int i = 0; i < N; ++i) registers[i] = vector.elements[i];
    }
}

/// N neighbouring elements by one access.
template <int N, class T>
__device__ inline void store(T* memory, const T* registers) {
    Vector<N, T> vector;
#pragma unroll
    for (int i = 0; i < N; ++i) vector.elements[i] = registers[i];
    *reinterpret_cast<Vector<N, T>*>(memory) = vector;
}
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256, 1)
d_w_kernel(tw::bf16* __restrict__ d_w, const float* __restrict__ d_w_partial) {
    const int block = blockIdx.x;
    const int t = threadIdx.x;
    tw::griddepcontrol_wait();

    float d_w_sum[4];
    // d_w: start
    #pragma unroll
    for (int element = 0; element < 4; ++element) d_w_sum[element] = 0.0f;

    const int d_w_partial_offset = block * 1024 + t * 4;
    // d_w: accumulate
    #pragma unroll
    for (int part = 0; part < 8; ++part) {
        float d_w_partial_values[4];
        tw::load<4>(d_w_partial_values, &d_w_partial[d_w_partial_offset + part * 147456]);
        #pragma unroll
        for (int element = 0; element < 4; ++element) d_w_sum[element] += d_w_partial_values[element];
    }

    // d_w
    tw::bf16 d_w_out[4];
    #pragma unroll
    for (int element = 0; element < 4; ++element) d_w_out[element] = tw::to_bf16(d_w_sum[element]);
    tw::store<4>(&d_w[d_w_partial_offset], d_w_out);
}


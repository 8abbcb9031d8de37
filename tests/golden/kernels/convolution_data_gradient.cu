// d_x[i, j, p, q] = cast(bf16, sum_{rq, r, s} select(r <= j + 1 && j <= r + 26 && s <= p + 1 && p <= s + 26,
//     cast(f32, dy[i, j - r + 1, p - s + 1, rq]) * cast(f32, w[rq, r, s, q]), 0.0))
// inputs    dy bf16 [64, 28, 28, 128], w bf16 [128, 3, 3, 128]
// schedule  [0] s.join_axes(d_x_2, 0, 2);
//           [1] Stage d_x_total = s.accumulators(d_x_2);
//           [2] auto [tile, row] = s.split(i_j_p, 192, Tail::Mask, {"tile", "row"});
//           [3] auto [column_tile, n] = s.split(q, 128, Tail::Mask, {"column_tile", "n"});
//           [4] auto [piece, column] = s.split(n, 64, {"piece", "column"});
//           [5] auto [warpgroup_m, m] = s.split(row, 64, {"warpgroup_m", "m"});
//           [6] s.at({d_x_total}, column_tile, Memory::Registers);
//           [7] s.order({tile, column_tile, piece, warpgroup_m, m, column});
//           [8] s.bind(warpgroup_m, warpgroup);
//           [9] auto [warpgroup_m_2, m_2] = s.split(i_j_p_d_x_total, 64, {"warpgroup_m", "m"});
//           [10] auto [channel, k] = s.split(rq, 64, Tail::Mask, {"channel", "k"});
//           [11] s.order({warpgroup_m_2, channel, r, s_d_x_total, m_2, q_d_x_total, k});
//           [12] s.bind(warpgroup_m_2, warpgroup);
//           [13] Loop step = s.fuse({channel, r, s_d_x_total}, "step");
//           [14] Stage d_x_out = s.stage(d_x_2, Memory::Shared, piece);
//           [15] s.via(d_x_out, Copy::Tma);
//           [16] s.persistent({tile, column_tile}, {.blocks = 132});
//           [17] Stage dy_shared = s.stage(d_x_total, dy, Memory::Shared, step, As::Matrix);
//           [18] Stage w_shared = s.stage(d_x_total, w, Memory::Shared, step);
//           [19] s.mma(d_x_total, wgmma, {.m = m_2, .n = q_d_x_total, .k = k});
//           [20] s.pipeline(step, {.stages = 4, .in_flight = 1});
//           [21] s.roles({{"math", warpgroups(3), registers(152), {d_x_2}}, {"load", warps(1), registers(40),
//     {dy_shared, w_shared}}});
// 512 threads, 189440 bytes of shared memory

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

/// Once each block has called this or ended, blocks of the next kernel may start, and wait.
__device__ inline void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Elements that move together.
template <int N, class T>
struct alignas(N * sizeof(T)) Vector { T elements[N]; };

/// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return *reinterpret_cast<T*>(dynamic_shared);
}

/// Waits until `threads` threads, counted in whole warps, have come to barrier `id`.
__device__ inline void barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
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

/// The inverse of ldmatrix; sm_90 and later.
template <int count, class T>
__device__ inline void stmatrix(T* row, const T* registers) {
    unsigned bits[count];
#pragma unroll
    for (int i = 0; i < count; ++i) bits[i] = pack_register(registers + i * (4 / (int)sizeof(T)));
    if constexpr (count == 1)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0])
                     : "memory");
    else if constexpr (count == 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0]), "r"(bits[1])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
                     : "memory");
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

/// What this thread has written to shared memory, tma_store and wgmma see.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Describes a tensor in global memory and the boxes of it that are copied; encoded by the host.
struct alignas(64) TensorMap {
    char opaque[128];
};

/// Has the map brought near, so that the first copy by it waits less.
__device__ inline void prefetch_tensor_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

template <int rank = 4>
__device__ inline void tma_load(void* to, const TensorMap& map, int x, int y, int z, int u, Barrier& barrier) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
        "%5}], [%6];"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(shared_address(&barrier))
        : "memory");
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

template <int rank = 2>
__device__ inline void tma_store(const TensorMap& map, int x, int y, const void* from) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 :
                 : "l"(&map), "r"(x), "r"(y), "r"(shared_address(from))
                 : "memory");
}

/// The thread's tma_store and tma_reduce_add since the last commit form a group.
__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Until all but the last `pending` groups have read their shared memory, which may then be overwritten.
template <int pending>
__device__ inline void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(pending) : "memory");
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

/// True, but the compiler does not know: it leaves what stands behind `if (always())` there, and does not do the
/// arithmetic of many such parts together, ahead of the first one's barriers.
__device__ inline bool always() { return blockDim.y == 1; }

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

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
/// Where column `column` of row `row` stands in rows of `line` bytes, as TMA and wgmma put them: the 16-byte pieces of
/// eight rows change places so that a piece of each is in other banks.
template <int line, int bytes>
__device__ inline int swizzle(int row, int column) {
    return column ^ row / (128 / line) % (line / 16) * (16 / bytes);
}
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

constexpr int TILES = 262;

struct Shared {
    alignas(1024) tw::bf16 dy_shared[4][1][192][64];
    alignas(1024) tw::bf16 w_shared[4][1][1][2][64][64];
    alignas(1024) tw::bf16 d_x_shared[192][64];
    alignas(16) tw::Barrier step_full[4];
    alignas(16) tw::Barrier step_empty[4];
};

extern "C" __global__ void __launch_bounds__(512, 1)
d_x_kernel(const __grid_constant__ tw::TensorMap dy_shared_map,
           const __grid_constant__ tw::TensorMap w_shared_map,
           const __grid_constant__ tw::TensorMap d_x_map) {
    Shared& shared = tw::shared_memory<Shared>();
    const int block_x = blockIdx.x;
    const int thread = threadIdx.x;
    if (thread == 0) {
        for (int stage = 0; stage < 4; ++stage) tw::mbarrier_init(shared.step_full[stage], 1);
        for (int stage = 0; stage < 4; ++stage) tw::mbarrier_init(shared.step_empty[stage], 3);
        tw::fence_mbarrier_init();
        tw::prefetch_tensor_map(dy_shared_map);
        tw::prefetch_tensor_map(w_shared_map);
        tw::prefetch_tensor_map(d_x_map);
    }
    __syncthreads();
    tw::griddepcontrol_wait();
    tw::griddepcontrol_launch_dependents();

    const int warpgroup_thread = thread % 128;
    if (threadIdx.x >= 384) {  // [21] role load: threads 384 to 511
        const int load_thread = threadIdx.x - 384;
        tw::setmaxnreg_dec<40>();
        if (load_thread == 0) {
            for (int tile = block_x; tile < TILES; tile += 132) {
                const int round = tile / 132;
                const int index = tile * 6 % 7;
                const int index_2 = tile * 48 / 7 % 28;
                const int index_3 = tile * 12 / 49;
                #pragma unroll 1
                for (int step = 0; step < 18; ++step) {
                    const int stage = (round * 2 + step) % 4;
                    tw::mbarrier_wait(shared.step_empty[stage], ((round * 18 + step) / 4 + 1) % 2);
                    // [17] dy_shared, w_shared, w_shared: load
                    tw::mbarrier_expect_tx(shared.step_full[stage], 40960);
                    const int step_group = step / 9;
                    const int step_in_group = step % 3;
                    const int step_digit = step / 3 % 3;
                    tw::tma_load_im2col(&shared.dy_shared[stage][0][0][0], dy_shared_map, step_group * 64,
                                        index * 4 - 1, index_2 - 1, index_3, 2 - step_in_group, 2 - step_digit,
                                        shared.step_full[stage]);
                    tw::tma_load(&shared.w_shared[stage][0][0][0][0][0], w_shared_map, 0, step_in_group, step_digit,
                                 step_group * 64, shared.step_full[stage]);
                    tw::tma_load(&shared.w_shared[stage][0][0][1][0][0], w_shared_map, 64, step_in_group, step_digit,
                                 step_group * 64, shared.step_full[stage]);
                }
            }
        }
    } else {  // [21] role math: threads 0 to 383
        tw::setmaxnreg_inc<152>();
        const int warpgroup_m = thread / 128;
        const int warp = thread / 32 % 4;
        const int d_x_shared_row = warpgroup_m * 64 + warp * 16;
        for (int tile = block_x; tile < TILES; tile += 132) {
            const int round = tile / 132;
            float d_x_total[64];
            tw::leave_undefined(d_x_total);
            for (int step = 0; step < 18; ++step) {
                const int stage = (round * 2 + step) % 4;
                tw::mbarrier_wait(shared.step_full[stage], (round * 18 + step) / 4 % 2);
                tw::wgmma_fence_operand(d_x_total);
                tw::wgmma_fence();
                // [19] d_x_total: multiply
                #pragma unroll
                for (int k_step = 0; k_step < 4; ++k_step) {
                    tw::wgmma_m64n128k16_bf16<0, 1>(d_x_total,
                        tw::matrix_descriptor(&shared.dy_shared[stage][0][warpgroup_m * 64][0], 128, 16, 1024,
                                              k_step * 32),
                        tw::matrix_descriptor(&shared.w_shared[stage][0][0][0][0][0], 128, 8192, 1024, k_step * 2048),
                        0 < step || 0 < k_step);
                }
                tw::wgmma_commit();
                tw::wgmma_wait<1>();
                if (1 <= step && warpgroup_thread == 0) {
                    tw::mbarrier_arrive(shared.step_empty[(round * 2 + step + 3) % 4]);
                }
            }
            tw::wgmma_wait<0>();
            tw::wgmma_fence_operand(d_x_total);
            if (warpgroup_thread == 0) tw::mbarrier_arrive(shared.step_empty[round * 2 + 1]);
            #pragma unroll
            for (int piece = 0; piece < 2; ++piece) {
                if (tw::always()) {
                    if (thread == 0) tw::tma_store_wait_read<0>();
                    tw::barrier_sync(1, 384);
                    // d_x
                    #pragma unroll
                    for (int column_tile_2 = 0; column_tile_2 < 4; ++column_tile_2) {
                        tw::bf16 d_x_shared_out[8];
                        #pragma unroll
                        for (int element = 0; element < 8; ++element) {
                            d_x_shared_out[element] = tw::to_bf16(d_x_total[piece * 32 + column_tile_2 * 8 + element]);
                        }
                        tw::stmatrix<4>(&shared.d_x_shared[thread % 16 + d_x_shared_row]
                            [tw::swizzle<128, 2>(thread % 16 + d_x_shared_row,
                                                 column_tile_2 * 16 + thread / 16 % 2 * 8)], d_x_shared_out);
                    }
                    tw::fence_proxy_async();
                    tw::barrier_sync(1, 384);
                    // [14] d_x_out: store
                    if (thread == 0) {
                        tw::tma_store(d_x_map, piece * 64, tile * 192, &shared.d_x_shared[0][0]);
                        tw::tma_store_commit();
                    }
                }
            }
        }
        if (thread == 0) tw::tma_store_wait_read<0>();
    }
}


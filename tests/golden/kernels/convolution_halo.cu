// raster[i, j] = select(i < 57536 && 1 <= i / 31 % 29 && 1 <= i % 31, x[i / 31 / 29, i / 31 % 29 - 1, i % 31 - 1, j],
//     0.0)
// taps[i, j, p, q] = select(true, w[p, i, j, q], 0.0)
// sums[i, j] = cast(bf16, sum_{r, s, c} cast(f32, raster[i + (r * 31 + s) * 1, c]) * cast(f32, taps[r, s, j, c]))
// y[i, j, p, q] = sums[i * 899 + j * 31 + p, q]
// inputs    x bf16 [64, 28, 30, 64], w bf16 [64, 3, 3, 64]
// schedule  [0] Stage sums_total = s.accumulators(sums);
//           [1] auto [rows, row] = s.split(j, 29, Tail::Mask, {"rows", "row"});
//           [2] auto [columns, column] = s.split(p, 31, Tail::Mask, {"columns", "column"});
//           [3] Loop m = s.fuse({i, rows, row, columns, column}, "m");
//           [4] auto [tile, leaving, place] = s.split(m, {256, 32}, Tail::Mask, {"tile", "leaving", "place"});
//           [5] s.at({sums}, leaving, Memory::Shared);
//           [6] s.at({sums_total}, tile, Memory::Registers);
//           [7] auto [warpgroup_m, f] = s.split(j_sums_total, 64, Tail::Mask, {"warpgroup_m", "f"});
//           [8] auto [channel, k] = s.split(c, 64, {"channel", "k"});
//           [9] s.order({warpgroup_m, channel, r, s_sums_total, f, i_sums_total, k});
//           [10] s.bind(warpgroup_m, warpgroup);
//           [11] Stage raster_shared = s.stage(sums_total, raster, Memory::Shared, channel);
//           [12] Stage taps_shared = s.stage(sums_total, taps, Memory::Shared, tile);
//           [13] s.inline_stage(raster);
//           [14] s.inline_stage(taps);
//           [15] s.mma(sums_total, wgmma, {.m = f, .n = i_sums_total, .k = k});
//           [16] s.pipeline(channel, {.stages = 2, .in_flight = 1});
//           [17] auto [warpgroup_m_2, f_2] = s.split(j_sums, 64, Tail::Mask, {"warpgroup_m", "f"});
//           [18] s.order({warpgroup_m_2, f_2, i_sums});
//           [19] s.bind(warpgroup_m_2, warpgroup);
//           [20] auto [all, group, element] = s.split(q, {64, 8}, Tail::Mask, {"all", "group", "element"});
//           [21] s.order({place, all, group, element});
//           [22] Loop stored = s.fuse({place, all, group}, "stored");
//           [23] auto [each, share] = s.split(stored, 128, {"each", "share"});
//           [24] s.bind(share, thread);
//           [25] s.bind(element, vector);
//           [26] s.persistent({tile}, {.blocks = 132});
//           [27] s.roles({{"math", warpgroups(2), registers(240), {y}, ping_pong(2)}, {"load", warps(1),
//     registers(24), {raster_shared, taps_shared}}});
// 384 threads, 165888 bytes of shared memory

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

/// N neighbouring elements, 16 bytes, from memory to memory that the kernel does not read, read in any case and stored
/// where the condition holds: neither a branch nor an order of memory stands between several.
template <int N, class T>
__device__ inline void copy_where(bool condition, T* to, const T* from) {
    static_assert(N * sizeof(T) == 16);
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    asm volatile("{.reg .pred stored; setp.ne.s32 stored, %0, 0; @stored st.global.v4.b32 [%1], {%2, %3, %4, %5};}"
                 :
                 : "r"(static_cast<int>(condition)), "l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w));
}

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

/// The inverse of ldmatrix_trans; sm_90 and later.
template <int count, class T>
__device__ inline void stmatrix_trans(T* row, const T* registers) {
    static_assert(sizeof(T) == 2, "stmatrix_trans moves elements of 2 bytes");
    unsigned bits[count];
#pragma unroll
    for (int i = 0; i < count; ++i) bits[i] = pack_register(registers + i * 2);
    if constexpr (count == 1)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0])
                     : "memory");
    else if constexpr (count == 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0]), "r"(bits[1])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
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

/// The value of one lane, for all.
template <class T>
__device__ inline T shuffle_from(T value, int lane) { return __shfl_sync(0xffffffff, value, lane); }

/// d[64, 256] = a[64, 16] * b[16, 256], plus d where it accumulates; asynchronous, by a warpgroup.
template <bool transpose_a = false, bool transpose_b = false>
__device__ inline void wgmma_m64n256k16_bf16(float (&d)[128], unsigned long long a, unsigned long long b,
                                             bool accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "
        "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
        "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "
        "%124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, %131, %132; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
          "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),
          "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]),
          "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]),
          "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]),
          "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]),
          "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]),
          "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]),
          "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"((int)accumulate), "n"((int)transpose_a), "n"((int)transpose_b));
}
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

constexpr int TILES = 225;

struct Shared {
    alignas(1024) tw::bf16 taps_shared[1][3][3][64][64];
    alignas(1024) tw::bf16 raster_shared[2][320][64];
    alignas(16) tw::bf16 sums[2][32][72];
    alignas(16) tw::Barrier channel_full[2];
    alignas(16) tw::Barrier channel_empty[2];
    alignas(16) tw::Barrier channel_done[2];
    alignas(16) tw::Barrier taps_shared_full[1];
};

extern "C" __global__ void __launch_bounds__(384, 1)
y_kernel(tw::bf16* __restrict__ y,
         const __grid_constant__ tw::TensorMap taps_shared_map,
         const __grid_constant__ tw::TensorMap raster_shared_map) {
    Shared& shared = tw::shared_memory<Shared>();
    const int block_x = blockIdx.x;
    const int block_thread = threadIdx.x;
    if (block_thread == 0) {
        for (int stage = 0; stage < 2; ++stage) tw::mbarrier_init(shared.channel_full[stage], 1);
        for (int stage = 0; stage < 2; ++stage) tw::mbarrier_init(shared.channel_empty[stage], 1);
        for (int stage = 0; stage < 2; ++stage) tw::mbarrier_init(shared.channel_done[stage], 128);
        tw::mbarrier_init(shared.taps_shared_full[0], 1);
        tw::fence_mbarrier_init();
        tw::prefetch_tensor_map(taps_shared_map);
        tw::prefetch_tensor_map(raster_shared_map);
    }
    __syncthreads();
    tw::griddepcontrol_wait();
    tw::griddepcontrol_launch_dependents();

    if (threadIdx.x >= 256) {  // [27] role load: threads 256 to 383
        const int load_thread = threadIdx.x - 256;
        tw::setmaxnreg_dec<24>();
        if (load_thread == 0) {
            for (int tile = block_x; tile < TILES; tile += 132) {
                const int round = tile / 132;
                // [12] taps_shared, taps_shared, taps_shared, taps_shared, taps_shared, taps_shared, taps_shared,
                //     taps_shared, taps_shared: load
                if (round < 1) {
                    tw::mbarrier_expect_tx(shared.taps_shared_full[0], sizeof shared.taps_shared[0]);
                    tw::tma_load(&shared.taps_shared[0][0][0][0][0], taps_shared_map, 0, 0, 0, 0,
                                 shared.taps_shared_full[0]);
                    tw::tma_load(&shared.taps_shared[0][0][1][0][0], taps_shared_map, 0, 1, 0, 0,
                                 shared.taps_shared_full[0]);
                    tw::tma_load(&shared.taps_shared[0][0][2][0][0], taps_shared_map, 0, 2, 0, 0,
                                 shared.taps_shared_full[0]);
                    tw::tma_load(&shared.taps_shared[0][1][0][0][0], taps_shared_map, 0, 0, 1, 0,
                                 shared.taps_shared_full[0]);
                    tw::tma_load(&shared.taps_shared[0][1][1][0][0], taps_shared_map, 0, 1, 1, 0,
                                 shared.taps_shared_full[0]);
                    tw::tma_load(&shared.taps_shared[0][1][2][0][0], taps_shared_map, 0, 2, 1, 0,
                                 shared.taps_shared_full[0]);
                    tw::tma_load(&shared.taps_shared[0][2][0][0][0], taps_shared_map, 0, 0, 2, 0,
                                 shared.taps_shared_full[0]);
                    tw::tma_load(&shared.taps_shared[0][2][1][0][0], taps_shared_map, 0, 1, 2, 0,
                                 shared.taps_shared_full[0]);
                    tw::tma_load(&shared.taps_shared[0][2][2][0][0], taps_shared_map, 0, 2, 2, 0,
                                 shared.taps_shared_full[0]);
                }
                tw::mbarrier_wait(shared.channel_empty[round], 1);
                // [11] raster_shared: load
                tw::mbarrier_expect_tx(shared.channel_full[round], sizeof shared.raster_shared[0]);
                tw::tma_load_im2col(&shared.raster_shared[round][0][0], raster_shared_map, 0, tile * 8 % 31 - 1,
                                    tile * 256 / 31 % 29 - 1, tile * 256 / 899, 0, 0, shared.channel_full[round]);
            }
        }
    } else {  // [27] role math: threads 0 to 255, 2 groups in turn
        const int turn = tw::shuffle_from(threadIdx.x / 128, 0);
        const int thread = threadIdx.x % 128;
        tw::setmaxnreg_inc<240>();
        const int warp = thread / 32;
        const int sums_group = thread / 16 % 2;
        const int sums_row = thread % 8;
        const int sums_row_2 = sums_group * 8 + sums_row;
        const int sums_vector = thread / 8 % 2;
        const int sums_column = warp * 16 + sums_vector * 8;
        const int sums_row_3 = thread / 8;
        const int sums_vector_2 = thread % 8;
        for (int tile = turn * 132 + block_x; tile < TILES; tile += 264) {
            const int round = tile / 132;
            float sums_total[64][2];
            tw::mbarrier_wait(shared.taps_shared_full[0], 0);
            float sums_total_sum[128];
            // [6] sums_total: start
            #pragma unroll
            for (int element = 0; element < 128; ++element) sums_total_sum[element] = 0.0f;
            tw::wgmma_fence_operand(sums_total_sum);
            if (1 <= round) {
                tw::mbarrier_wait(shared.channel_done[(round + 1) % 2], ((round + 1) / 2 + 1) % 2);
            }
            tw::mbarrier_wait(shared.channel_full[round], 0);
            tw::wgmma_fence_operand(sums_total_sum);
            tw::wgmma_fence();
            // [15] sums_total: multiply
            #pragma unroll
            for (int r = 0; r < 2; ++r) {
                #pragma unroll
                for (int s = 0; s < 3; ++s) {
                    #pragma unroll
                    for (int k_step = 0; k_step < 4; ++k_step) {
                        tw::wgmma_m64n256k16_bf16(sums_total_sum,
                            tw::matrix_descriptor(&shared.taps_shared[0][r][s][0][0], 128, 16, 1024, k_step * 32),
                            tw::matrix_descriptor(&shared.raster_shared[round][r * 31 + s][0], 128, 16, 1024,
                                                  k_step * 32), true);
                    }
                }
            }
            tw::mbarrier_arrive(shared.channel_done[turn]);
            #pragma unroll
            for (int s = 0; s < 3; ++s) {
                #pragma unroll
                for (int k_step = 0; k_step < 4; ++k_step) {
                    tw::wgmma_m64n256k16_bf16(sums_total_sum,
                        tw::matrix_descriptor(&shared.taps_shared[0][2][s][0][0], 128, 16, 1024, k_step * 32),
                        tw::matrix_descriptor(&shared.raster_shared[round][s + 62][0], 128, 16, 1024, k_step * 32),
                        true);
                }
            }
            tw::wgmma_commit();
            tw::wgmma_wait<1>();
            tw::wgmma_wait<0>();
            tw::wgmma_fence_operand(sums_total_sum);
            if (thread == 0) tw::mbarrier_arrive(shared.channel_empty[round]);
            // [6] sums_total
            #pragma unroll
            for (int i_tile = 0; i_tile < 32; ++i_tile) {
                #pragma unroll
                for (int f_half = 0; f_half < 2; ++f_half) {
                    #pragma unroll
                    for (int i_pair = 0; i_pair < 2; ++i_pair) {
                        sums_total[i_tile * 2 + i_pair][f_half] = sums_total_sum[i_tile * 4 + f_half * 2 + i_pair];
                    }
                }
            }
            #pragma unroll
            for (int leaving = 0; leaving < 8; ++leaving) {
                // [5] sums
                #pragma unroll
                for (int i_tile_2 = 0; i_tile_2 < 2; ++i_tile_2) {
                    tw::bf16 sums_out[8];
                    #pragma unroll
                    for (int i_tile = 0; i_tile < 2; ++i_tile) {
                        #pragma unroll
                        for (int f_half = 0; f_half < 2; ++f_half) {
                            #pragma unroll
                            for (int i_pair = 0; i_pair < 2; ++i_pair) {
                                sums_out[i_tile * 4 + f_half * 2 + i_pair] =
                                    tw::to_bf16(sums_total[leaving * 8 + i_tile_2 * 4 + i_tile * 2 + i_pair][f_half]);
                            }
                        }
                    }
                    tw::stmatrix_trans<4>(&shared.sums[turn][sums_row_2 + i_tile_2 * 16][sums_column], sums_out);
                }
                tw::barrier_sync(turn + 1, 128);
                // y
                #pragma unroll
                for (int each = 0; each < 2; ++each) {
                    const int index = (tile * 256 + leaving * 32 + each * 16 + sums_row_3) / 31 % 29;
                    const int index_2 = (each * 16 + tile * 8 + leaving + sums_row_3) % 31;
                    tw::copy_where<8>(index < 28 && index_2 < 30 &&
                        tile * 256 + leaving * 32 + each * 16 + sums_row_3 < 57536,
                        &y[sums_vector_2 * 8 + (sums_row_3 + tile * 256 + leaving * 32 + each * 16) / 899 * 53760 +
                           index * 1920 + index_2 * 64], &shared.sums[turn][sums_row_3 + each * 16][sums_vector_2 * 8]);
                }
                tw::barrier_sync(turn + 1, 128);
            }
        }
    }
}


// c[i, j] = cast(bf16, sum_k cast(f32, a[i, k]) * cast(f32, b[j, k]))
// inputs    a bf16 [1024, 512], b bf16 [1024, 512]
// schedule  [0] Stage c_total = s.accumulators(c);
//           [1] auto [blocks_m, tile_m] = s.split(i, 128, Tail::Mask, {"blocks_m", "tile_m"});
//           [2] auto [block_n, n_inner] = s.split(j, 256, Tail::Mask, {"block_n", "n_inner"});
//           [3] auto [warpgroup_m, m_inner] = s.split(tile_m, 64, {"warpgroup_m", "m_inner"});
//           [4] auto [clusters_m, rank_m] = s.split(blocks_m, 2, Tail::Mask, {"clusters_m", "rank_m"});
//           [5] auto [group_m, cluster_m] = s.split(clusters_m, 4, {"group_m", "cluster_m"});
//           [6] auto [epilogue_tile, epilogue_n] = s.split(n_inner, 64, {"epilogue_tile", "epilogue_n"});
//           [7] s.at(c_total, rank_m);
//           [8] s.order({group_m, block_n, cluster_m, rank_m, epilogue_tile, warpgroup_m, m_inner, epilogue_n});
//           [9] s.set_memory(c_total, Memory::Registers);
//           [10] auto [warpgroup_m_2, m_inner_2] = s.split(i_c_total, 64, {"warpgroup_m", "m_inner"});
//           [11] auto [k_outer, k_inner] = s.split(k, 64, Tail::Mask);
//           [12] s.order({warpgroup_m_2, k_outer, m_inner_2, j_c_total, k_inner});
//           [13] s.bind(warpgroup_m_2, warpgroup);
//           [14] s.persistent({group_m, block_n, cluster_m}, {.blocks = 132});
//           [15] s.bind(rank_m, cluster);
//           [16] s.bind(warpgroup_m, warpgroup);
//           [17] Stage a_shared = s.stage(c_total, a, Memory::Shared, k_outer);
//           [18] Stage b_shared = s.stage(c_total, b, Memory::Shared, k_outer);
//           [19] Stage c_out = s.stage(c, Memory::Shared, epilogue_tile);
//           [20] s.via(c_out, Copy::Tma);
//           [21] s.mma(c_total, wgmma, {.m = m_inner_2, .n = j_c_total, .k = k_inner});
//           [22] s.pipeline(k_outer, {.stages = 4, .in_flight = 1});
//           [23] s.roles({{"math", warpgroups(2), registers(232), {c}}, {"load", warps(1), registers(40), {a_shared,
//     b_shared}}});
// 384 threads, 214016 bytes of shared memory

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

/// At the barrier in the same place of another block of the cluster. Relaxed: says that this thread's reads are over,
/// shows nothing that it has written.
__device__ inline void mbarrier_arrive_at(Barrier& barrier, unsigned rank) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        :
        : "r"(shared_address(&barrier)), "r"(rank)
        : "memory");
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

/// Half of a barrier of all threads of the cluster: what this thread has done is seen behind the others' cluster_wait.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

/// Until all have arrived.
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/// Describes a tensor in global memory and the boxes of it that are copied; encoded by the host.
struct alignas(64) TensorMap {
    char opaque[128];
};

/// Has the map brought near, so that the first copy by it waits less.
__device__ inline void prefetch_tensor_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

template <int rank = 2>
__device__ inline void tma_load(void* to, const TensorMap& map, int x, int y, Barrier& barrier) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier))
        : "memory");
}

template <int rank = 2>
__device__ inline void tma_load_multicast(void* to, const TensorMap& map, int x, int y, Barrier& barrier,
                                          unsigned ranks, unsigned first = 0) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3}], [%4], %5;"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier)),
          "h"((unsigned short)(ranks << first))
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

struct Shared {
    alignas(1024) tw::bf16 a_shared[4][128][64];
    alignas(1024) tw::bf16 b_shared[4][256][64];
    alignas(1024) tw::bf16 c_shared[128][64];
    alignas(16) tw::Barrier k_outer_full[4];
    alignas(16) tw::Barrier k_outer_empty[4];
};

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
c_kernel(const __grid_constant__ tw::TensorMap a_shared_map,
         const __grid_constant__ tw::TensorMap b_shared_map,
         const __grid_constant__ tw::TensorMap c_map) {
    Shared& shared = tw::shared_memory<Shared>();
    const int tile = blockIdx.x;
    const int thread = threadIdx.x;
    if (thread == 0) {
        for (int stage = 0; stage < 4; ++stage) tw::mbarrier_init(shared.k_outer_full[stage], 1);
        for (int stage = 0; stage < 4; ++stage) tw::mbarrier_init(shared.k_outer_empty[stage], 4);
        tw::fence_mbarrier_init();
        tw::prefetch_tensor_map(a_shared_map);
        tw::prefetch_tensor_map(b_shared_map);
        tw::prefetch_tensor_map(c_map);
    }
    tw::cluster_arrive();
    tw::cluster_wait();
    tw::griddepcontrol_wait();
    tw::griddepcontrol_launch_dependents();

    const int warpgroup_thread = thread % 128;
    if (threadIdx.x >= 256) {  // [23] role load: threads 256 to 383
        const int load_thread = threadIdx.x - 256;
        tw::setmaxnreg_dec<40>();
        if (load_thread == 0) {
            const int rank_m = tile % 2;
            const int cluster_m = tile / 2 % 4;
            const int block_n = tile / 8;
            #pragma unroll 1
            for (int k_outer = 0; k_outer < 8; ++k_outer) {
                const int stage = k_outer % 4;
                tw::mbarrier_wait(shared.k_outer_empty[stage], (k_outer / 4 + 1) % 2);
                // [17] a_shared, b_shared: load
                tw::mbarrier_expect_tx(shared.k_outer_full[stage],
                                       sizeof shared.a_shared[0] + sizeof shared.b_shared[0]);
                tw::tma_load(&shared.a_shared[stage][0][0], a_shared_map, k_outer * 64, cluster_m * 256 + rank_m * 128,
                             shared.k_outer_full[stage]);
                tw::tma_load_multicast(&shared.b_shared[stage][rank_m * 128][0], b_shared_map, k_outer * 64,
                                       block_n * 256 + rank_m * 128, shared.k_outer_full[stage], 3);
            }
        }
    } else {  // [23] role math: threads 0 to 255
        tw::setmaxnreg_inc<232>();
        const int warpgroup_m = thread / 128;
        const int warp = thread / 32 % 4;
        const int rank_m = tile % 2;
        const int cluster_m = tile / 2 % 4;
        const int block_n = tile / 8;
        float c_total[128];
        tw::leave_undefined(c_total);
        for (int k_outer = 0; k_outer < 8; ++k_outer) {
            const int stage = k_outer % 4;
            tw::mbarrier_wait(shared.k_outer_full[stage], k_outer / 4);
            tw::wgmma_fence_operand(c_total);
            tw::wgmma_fence();
            // [21] c_total: multiply
            #pragma unroll
            for (int k_inner_step = 0; k_inner_step < 4; ++k_inner_step) {
                tw::wgmma_m64n256k16_bf16(c_total,
                                          tw::matrix_descriptor(&shared.a_shared[stage][warpgroup_m * 64][0], 128, 16,
                                                                1024, k_inner_step * 32),
                                          tw::matrix_descriptor(&shared.b_shared[stage][0][0], 128, 16, 1024,
                                                                k_inner_step * 32), 0 < k_outer || 0 < k_inner_step);
            }
            tw::wgmma_commit();
            tw::wgmma_wait<1>();
            if (1 <= k_outer && warpgroup_thread < 2) {
                tw::mbarrier_arrive_at(shared.k_outer_empty[(k_outer + 3) % 4], warpgroup_thread);
            }
        }
        tw::wgmma_wait<0>();
        tw::wgmma_fence_operand(c_total);
        if (warpgroup_thread < 2) tw::mbarrier_arrive_at(shared.k_outer_empty[3], warpgroup_thread);
        const int c_shared_row = warpgroup_m * 64 + warp * 16;
        #pragma unroll
        for (int epilogue_tile = 0; epilogue_tile < 4; ++epilogue_tile) {
            if (tw::always()) {
                if (thread == 0) tw::tma_store_wait_read<0>();
                tw::barrier_sync(1, 256);
                // c
                #pragma unroll
                for (int epilogue_n_tile_2 = 0; epilogue_n_tile_2 < 4; ++epilogue_n_tile_2) {
                    tw::bf16 c_shared_out[8];
                    #pragma unroll
                    for (int element = 0; element < 8; ++element) {
                        c_shared_out[element] =
                            tw::to_bf16(c_total[epilogue_tile * 32 + epilogue_n_tile_2 * 8 + element]);
                    }
                    tw::stmatrix<4>(&shared.c_shared[thread % 16 + c_shared_row]
                                    [tw::swizzle<128, 2>(thread % 16 + c_shared_row,
                                                         epilogue_n_tile_2 * 16 + thread / 16 % 2 * 8)], c_shared_out);
                }
                tw::fence_proxy_async();
                tw::barrier_sync(1, 256);
                // [19] c_out: store
                if (thread == 0) {
                    tw::tma_store(c_map, block_n * 256 + epilogue_tile * 64, cluster_m * 256 + rank_m * 128,
                                  &shared.c_shared[0][0]);
                    tw::tma_store_commit();
                }
            }
        }
        if (thread == 0) tw::tma_store_wait_read<0>();
    }
    tw::cluster_arrive();
    tw::cluster_wait();
}


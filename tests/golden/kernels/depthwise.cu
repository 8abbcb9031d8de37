// x_around[i, j, p, q] = select(3 <= j && j < 59 && 3 <= p && p < 59, x[i, j - 3, p - 3, q], 0.0)
// taps[i, j, p] = cast(f32, select(true, w[p, i, j, 0], 0.0))
// sums[i, j, p, q] = sum_{r, s} cast(f32, x_around[i, j * 1 + r * 1, p * 1 + s * 1, q]) * taps[r, s, q]
// y[i, j, p, q] = cast(bf16, sums[i, j, p, q])
// inputs    x bf16 [64, 56, 56, 96], w bf16 [96, 7, 7, 1]
// schedule  [0] auto [tile_p, thread_p, row] = s.split(j, {8, 4}, Tail::Mask, {"tile_p", "thread_p", "row"});
//           [1] auto [tile_q, thread_q, column] = s.split(p, {28, 7}, Tail::Mask, {"tile_q", "thread_q", "column"});
//           [2] auto [tile_c, lane_c, pair] = s.split(q, {32, 2}, Tail::Mask, {"tile_c", "lane_c", "pair"});
//           [3] s.order({i, tile_p, tile_q, tile_c, thread_p, thread_q, lane_c, row, column, pair});
//           [4] Loop tile = s.fuse({i, tile_p, tile_q}, "tile");
//           [5] auto [run, step] = s.split(tile, 7, Tail::Mask, {"run", "step"});
//           [6] s.order({run, tile_c, step});
//           [7] Loop block = s.fuse(run, tile_c, "block");
//           [8] s.bind(block, grid.x);
//           [9] s.bind({thread_p, thread_q, lane_c}, thread);
//           [10] s.bind(pair, vector);
//           [11] s.at({sums}, lane_c, Memory::Registers);
//           [12] s.order({r, j_sums, s_sums, p_sums, q_sums});
//           [13] s.bind({column, row, q_sums, p_sums, s_sums, j_sums, r}, unrolled);
//           [14] auto [x_around_shared] = s.stage({{sums, x_around}}, Memory::Shared, step);
//           [15] s.inline_stage(x_around);
//           [16] s.pipeline(step, {.stages = 2});
//           [17] s.via(x_around_shared, Copy::Tma);
//           [18] Loop all = s.fuse({i_taps, j_taps, p_taps}, "all");
//           [19] auto [block_2, t] = s.split(all, 256, Tail::Mask, {"block", "t"});
//           [20] s.bind(block_2, grid.x);
//           [21] s.bind(t, thread);
// 256 threads

// ---- vocabulary: what the GPU has -----------------------------------------------------------------------------------
namespace tw {
struct bf16 { unsigned short bits; };

/// A float's bits, and back.
__device__ inline unsigned float_bits(float x) { return __float_as_uint(x); }
__device__ inline float bits_float(unsigned bits) { return __uint_as_float(bits); }

/// One instruction of a half of a word: a shift, or a mask of the upper one.
__device__ inline float cvt_f32_bf16(unsigned short bits) {
    return bits_float(static_cast<unsigned>(bits) << 16);
}

/// Until all that was launched before this kernel has finished and its results are visible.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
}  // namespace tw

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256, 1)
taps_kernel(const tw::bf16* __restrict__ w, float* __restrict__ taps) {
    const int block = blockIdx.x;
    const int t = threadIdx.x;
    tw::griddepcontrol_wait();

    const int w_offset = (block * 64 + t) % 96 * 49 + (block * 256 + t) / 672 * 7 + (block * 256 + t) / 96 % 7;
    // taps
    if (block * 256 + t < 4704) taps[block * 256 + t] = tw::to_f32(w[w_offset]);
}

// x_around[i, j, p, q] = select(3 <= j && j < 59 && 3 <= p && p < 59, x[i, j - 3, p - 3, q], 0.0)
// taps[i, j, p] = cast(f32, select(true, w[p, i, j, 0], 0.0))
// sums[i, j, p, q] = sum_{r, s} cast(f32, x_around[i, j * 1 + r * 1, p * 1 + s * 1, q]) * taps[r, s, q]
// y[i, j, p, q] = cast(bf16, sums[i, j, p, q])
// inputs    x bf16 [64, 56, 56, 96], w bf16 [96, 7, 7, 1]
// schedule  [0] auto [tile_p, thread_p, row] = s.split(j, {8, 4}, Tail::Mask, {"tile_p", "thread_p", "row"});
//           [1] auto [tile_q, thread_q, column] = s.split(p, {28, 7}, Tail::Mask, {"tile_q", "thread_q", "column"});
//           [2] auto [tile_c, lane_c, pair] = s.split(q, {32, 2}, Tail::Mask, {"tile_c", "lane_c", "pair"});
//           [3] s.order({i, tile_p, tile_q, tile_c, thread_p, thread_q, lane_c, row, column, pair});
//           [4] Loop tile = s.fuse({i, tile_p, tile_q}, "tile");
//           [5] auto [run, step] = s.split(tile, 7, Tail::Mask, {"run", "step"});
//           [6] s.order({run, tile_c, step});
//           [7] Loop block = s.fuse(run, tile_c, "block");
//           [8] s.bind(block, grid.x);
//           [9] s.bind({thread_p, thread_q, lane_c}, thread);
//           [10] s.bind(pair, vector);
//           [11] s.at({sums}, lane_c, Memory::Registers);
//           [12] s.order({r, j_sums, s_sums, p_sums, q_sums});
//           [13] s.bind({column, row, q_sums, p_sums, s_sums, j_sums, r}, unrolled);
//           [14] auto [x_around_shared] = s.stage({{sums, x_around}}, Memory::Shared, step);
//           [15] s.inline_stage(x_around);
//           [16] s.pipeline(step, {.stages = 2});
//           [17] s.via(x_around_shared, Copy::Tma);
//           [18] Loop all = s.fuse({i_taps, j_taps, p_taps}, "all");
//           [19] auto [block_2, t] = s.split(all, 256, Tail::Mask, {"block", "t"});
//           [20] s.bind(block_2, grid.x);
//           [21] s.bind(t, thread);
// 128 threads, 61056 bytes of shared memory

// ---- vocabulary: what the GPU has -----------------------------------------------------------------------------------
namespace tw {
struct bf16 { unsigned short bits; };

/// A float's bits, and back.
__device__ inline unsigned float_bits(float x) { return __float_as_uint(x); }
__device__ inline float bits_float(unsigned bits) { return __uint_as_float(bits); }

/// One instruction of a half of a word: a shift, or a mask of the upper one.
__device__ inline float cvt_f32_bf16(unsigned short bits) {
    return bits_float(static_cast<unsigned>(bits) << 16);
}

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

/// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return *reinterpret_cast<T*>(dynamic_shared);
}

/// The address in the window of shared memory.
__device__ inline unsigned shared_address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

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

__device__ inline float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
}  // namespace tw

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

struct Shared {
    alignas(128) tw::bf16 x_around_shared[2][1][14][34][32];
    alignas(16) tw::Barrier step_full[2];
};

extern "C" __global__ void __launch_bounds__(128, 1)
y_kernel(tw::bf16* __restrict__ y,
         const float* __restrict__ taps,
         const __grid_constant__ tw::TensorMap x_around_shared_map) {
    Shared& shared = tw::shared_memory<Shared>();
    const int block = blockIdx.x;
    const int thread = threadIdx.x;
    tw::griddepcontrol_wait();
    if (thread == 0) {
        for (int stage = 0; stage < 2; ++stage) tw::mbarrier_init(shared.step_full[stage], 1);
        tw::fence_mbarrier_init();
        tw::prefetch_tensor_map(x_around_shared_map);
    }

    const int thread_p = thread / 64;
    const int thread_q = thread / 16 % 4;
    const int lane_c = thread % 16;
    const int block_in_group = block % 3;
    const int block_group = block / 3;
    const int block_group_2 = block / 6;
    // [14] x_around_shared: load
    if (thread == 0) {
        tw::mbarrier_expect_tx(shared.step_full[0], sizeof shared.x_around_shared[0]);
        tw::tma_load(&shared.x_around_shared[0][0][0][0][0], x_around_shared_map, block_in_group * 32,
                     block / 3 % 2 * 28 - 3, block_group * 7 / 2 % 7 * 8 - 3, block_group_2, shared.step_full[0]);
    }

    const int taps_offset = block_in_group * 32 + lane_c * 2;
    const int y_offset = block_group_2 * 301056 + thread_p * 21504 + thread_q * 672 + block_in_group * 32 + lane_c * 2;
    for (int step = 0; step < 7; ++step) {
        __syncthreads();
        const int stage = step % 2;
        tw::mbarrier_wait(shared.step_full[stage], step / 2 % 2);
        // [14] x_around_shared: load
        if (step < 6 && thread == 0) {
            const int other_stage = (step + 1) % 2;
            tw::mbarrier_expect_tx(shared.step_full[other_stage], sizeof shared.x_around_shared[0]);
            tw::tma_load(&shared.x_around_shared[other_stage][0][0][0][0], x_around_shared_map, block_in_group * 32,
                         (step + block_group + 1) % 2 * 28 - 3, (block_group * 7 + step + 1) / 2 % 7 * 8 - 3,
                         block_group_2, shared.step_full[other_stage]);
        }
        float sums[4][7][2];
        float sums_sum[4][7][2];
        // [11] sums: start
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            #pragma unroll
            for (int p = 0; p < 7; ++p) {
                #pragma unroll
                for (int q = 0; q < 2; ++q) sums_sum[j][p][q] = 0.0f;
            }
        }
        __syncthreads();
        // [11] sums: accumulate
        #pragma unroll
        for (int r = 0; r < 7; ++r) {
            float taps_values[7][2];
            #pragma unroll
            for (int s = 0; s < 7; ++s) tw::load<2>(taps_values[s], &taps[taps_offset + r * 672 + s * 96]);
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                #pragma unroll
                for (int s = 0; s < 7; ++s) {
                    #pragma unroll
                    for (int p = 0; p < 7; ++p) {
                        #pragma unroll
                        for (int q = 0; q < 2; ++q) {
                            sums_sum[j][p][q] =
                                tw::fma(tw::to_f32(shared.x_around_shared[stage][0][thread_p * 4 + j + r]
                                                   [thread_q * 7 + p + s][lane_c * 2 + q]), taps_values[s][q],
                                        sums_sum[j][p][q]);
                        }
                    }
                }
            }
        }
        // [11] sums
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            #pragma unroll
            for (int p = 0; p < 7; ++p) {
                #pragma unroll
                for (int q = 0; q < 2; ++q) sums[j][p][q] = sums_sum[j][p][q];
            }
        }
        const int index = (block_group * 7 + step) / 2 % 7;
        const int index_2 = (block_group + step) % 2;
        const int y_offset_2 = index * 43008 + index_2 * 2688;
        // y
        #pragma unroll
        for (int row = 0; row < 4; ++row) {
            #pragma unroll
            for (int column = 0; column < 7; ++column) {
                tw::bf16 y_out[2];
                #pragma unroll
                for (int pair = 0; pair < 2; ++pair) y_out[pair] = tw::to_bf16(sums[row][column][pair]);
                tw::store<2>(&y[y_offset + y_offset_2 + row * 5376 + column * 96], y_out);
            }
        }
        tw::fence_proxy_async();
    }
}


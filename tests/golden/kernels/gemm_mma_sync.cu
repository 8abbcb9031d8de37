// c[i, j] = cast(bf16, sum_k cast(f32, a[i, k]) * cast(f32, b[j, k]))
// inputs    a bf16 [256, 128], b bf16 [192, 128]
// schedule  [0] auto [blocks_m, tile_m] = s.split(i, 128, Tail::Mask, {"blocks_m", "tile_m"});
//           [1] auto [block_n, tile_n] = s.split(j, 128, Tail::Mask, {"block_n", "tile_n"});
//           [2] auto [warp_m, m_inner] = s.split(tile_m, 64, {"warp_m", "m_inner"});
//           [3] auto [warp_n, n_inner] = s.split(tile_n, 64, {"warp_n", "n_inner"});
//           [4] auto [group_m, block_m] = s.split(blocks_m, 2, {"group_m", "block_m"});
//           [5] auto [k_outer, k_inner] = s.split(k, 32, Tail::Mask);
//           [6] s.order({group_m, block_n, block_m, warp_m, warp_n, k_outer, m_inner, n_inner, k_inner});
//           [7] s.bind(group_m, grid.z);
//           [8] s.bind(block_n, grid.y);
//           [9] s.bind(block_m, grid.x);
//           [10] s.bind(warp_m, warp);
//           [11] s.bind(warp_n, warp);
//           [12] Stage a_shared = s.stage(c, a, Memory::Shared, k_outer);
//           [13] Stage b_shared = s.stage(c, b, Memory::Shared, k_outer);
//           [14] s.mma(c, mma_sync, {.m = m_inner, .n = n_inner, .k = k_inner});
//           [15] s.pipeline(k_outer, {.stages = 3});
// 128 threads, 61440 bytes of shared memory

// ---- vocabulary: what the GPU has -----------------------------------------------------------------------------------
namespace tw {
struct f16 { unsigned short bits; };

struct bf16 { unsigned short bits; };

__device__ inline bf16 to_bf16(float x) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

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

/// The thread's copies since the last commit form a group, an empty one if there are none.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Until at most the last `pending` groups of this thread are under way. Others see the copied after a barrier.
template <int pending>
__device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
}

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

/// `count` matrices of 8 rows of 16 bytes: lane l gives the address of row l % 8 of matrix l / 8, and gets the 4 bytes
/// l % 4 of row l / 4 of each.
template <int count, class T>
__device__ inline void ldmatrix(T* registers, const T* row) {
    unsigned bits[count];
    if constexpr (count == 1)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                     : "=r"(bits[0])
                     : "r"(shared_address(row))
                     : "memory");
    else if constexpr (count == 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(bits[0]), "=r"(bits[1])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                     : "r"(shared_address(row))
                     : "memory");
#pragma unroll
    for (int i = 0; i < count; ++i) unpack_register(registers + i * (4 / (int)sizeof(T)), bits[i]);
}

/// d[16, 8] += a[16, k] * b[k, 8] over a warp, each lane with PTX's part of them in registers.
__device__ inline void mma_m16n8k16(float* d, const bf16* a, const bf16* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 2)), "r"(pack_register(a + 4)), "r"(pack_register(a + 6)),
          "r"(pack_register(b)), "r"(pack_register(b + 2)));
}

__device__ inline void mma_m16n8k16(float* d, const f16* a, const f16* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(pack_register(a)), "r"(pack_register(a + 2)), "r"(pack_register(a + 4)), "r"(pack_register(a + 6)),
          "r"(pack_register(b)), "r"(pack_register(b + 2)));
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
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

struct Shared {
    alignas(16) tw::bf16 a_shared[3][128][40];
    alignas(16) tw::bf16 b_shared[3][128][40];
};

extern "C" __global__ void __launch_bounds__(128, 1)
c_kernel(const tw::bf16* __restrict__ a, const tw::bf16* __restrict__ b, tw::bf16* __restrict__ c) {
    Shared& shared = tw::shared_memory<Shared>();
    const int block_n = blockIdx.y;
    const int block_m = blockIdx.x;
    const int thread = threadIdx.x;
    const int warp_m = thread / 64;
    const int warp_n = thread / 32 % 2;
    const int lane_row = thread / 4 % 8;
    const int lane_column = thread % 4;
    float c_sum[4][8][4];
    // c: start
    #pragma unroll
    for (int m_inner_tile = 0; m_inner_tile < 4; ++m_inner_tile) {
        #pragma unroll
        for (int n_inner_tile = 0; n_inner_tile < 8; ++n_inner_tile) {
            #pragma unroll
            for (int element = 0; element < 4; ++element) c_sum[m_inner_tile][n_inner_tile][element] = 0.0f;
        }
    }

    const int row = thread / 4;
    const int a_offset = block_m * 16384 + row * 128 + lane_column * 8;
    const int b_offset = block_n * 16384 + row * 128 + lane_column * 8;
    for (int ahead = 0; ahead < 2; ++ahead) {
        // [12] a_shared: copy asynchronously
        #pragma unroll
        for (int step = 0; step < 4; ++step) {
            tw::cp_async<8>(&shared.a_shared[ahead][row + step * 32][lane_column * 8],
                            &a[a_offset + ahead * 32 + step * 4096]);
        }
        // [13] b_shared: copy asynchronously
        #pragma unroll
        for (int step = 0; step < 4; ++step) {
            tw::cp_async_or_zero<8>(&shared.b_shared[ahead][row + step * 32][lane_column * 8],
                                    &b[b_offset + ahead * 32 + step * 4096], block_n * 128 + step * 32 + row < 192);
        }
        tw::cp_async_commit();
    }

    const int a_shared_row = warp_m * 64 + thread % 16;
    const int thread_digit = thread / 16 % 2;
    const int b_shared_row = warp_n * 64 + thread_digit * 8 + thread % 8;
    for (int k_outer = 0; k_outer < 4; ++k_outer) {
        tw::cp_async_wait<1>();
        const int stage = k_outer % 3;
        __syncthreads();
        // [12] a_shared: copy asynchronously
        if (k_outer < 2) {
            const int other_stage = (k_outer + 2) % 3;
            #pragma unroll
            for (int step = 0; step < 4; ++step) {
                tw::cp_async<8>(&shared.a_shared[other_stage][row + step * 32][lane_column * 8],
                                &a[a_offset + k_outer * 32 + step * 4096 + 64]);
            }
        }
        // [13] b_shared: copy asynchronously
        if (k_outer < 2) {
            const int other_stage = (k_outer + 2) % 3;
            #pragma unroll
            for (int step = 0; step < 4; ++step) {
                tw::cp_async_or_zero<8>(&shared.b_shared[other_stage][row + step * 32][lane_column * 8],
                    &b[b_offset + k_outer * 32 + step * 4096 + 64], block_n * 128 + step * 32 + row < 192);
            }
        }
        tw::cp_async_commit();
        #pragma unroll
        for (int k_inner_step = 0; k_inner_step < 2; ++k_inner_step) {
            tw::bf16 a_shared_fragment[4][2][2][2];
            tw::bf16 b_shared_fragment[8][2][2];
            // [14] a_shared_fragment: load matrices
            #pragma unroll
            for (int m_inner_tile = 0; m_inner_tile < 4; ++m_inner_tile) {
                tw::ldmatrix<4>(a_shared_fragment[m_inner_tile][0][0],
                    &shared.a_shared[stage][a_shared_row + m_inner_tile * 16][thread_digit * 8 + k_inner_step * 16]);
            }
            // [14] b_shared_fragment: load matrices
            #pragma unroll
            for (int n_inner_tile_2 = 0; n_inner_tile_2 < 4; ++n_inner_tile_2) {
                tw::ldmatrix<4>(b_shared_fragment[n_inner_tile_2 * 2][0],
                                &shared.b_shared[stage][b_shared_row + n_inner_tile_2 * 16]
                                [k_inner_step * 16 + thread / 8 % 2 * 8]);
            }
            // [14] c: multiply
            #pragma unroll
            for (int m_inner_tile = 0; m_inner_tile < 4; ++m_inner_tile) {
                #pragma unroll
                for (int n_inner_tile = 0; n_inner_tile < 8; ++n_inner_tile) {
                    tw::mma_m16n8k16(c_sum[m_inner_tile][n_inner_tile], a_shared_fragment[m_inner_tile][0][0],
                                     b_shared_fragment[n_inner_tile][0]);
                }
            }
        }
    }

    const int c_offset =
        block_m * 24576 + warp_m * 12288 + lane_row * 192 + block_n * 128 + warp_n * 64 + lane_column * 8;
    // c
    #pragma unroll
    for (int m_inner_tile = 0; m_inner_tile < 4; ++m_inner_tile) {
        #pragma unroll
        for (int n_inner_tile_4 = 0; n_inner_tile_4 < 2; ++n_inner_tile_4) {
            #pragma unroll
            for (int m_inner_half = 0; m_inner_half < 2; ++m_inner_half) {
                tw::bf16 c_out[8];
                #pragma unroll
                for (int n_inner_tile = 0; n_inner_tile < 4; ++n_inner_tile) {
                    #pragma unroll
                    for (int n_inner_pair = 0; n_inner_pair < 2; ++n_inner_pair) {
                        c_out[n_inner_tile * 2 + n_inner_pair] =
                            tw::to_bf16(c_sum[m_inner_tile][n_inner_tile_4 * 4 + n_inner_tile]
                                        [m_inner_half * 2 + n_inner_pair]);
                    }
                }
                tw::transpose_lanes<4>(c_out);
                if (block_n * 16 + warp_n * 8 + n_inner_tile_4 * 4 + lane_column < 24) {
                    tw::store<8>(&c[c_offset + m_inner_tile * 3072 + n_inner_tile_4 * 32 + m_inner_half * 1536], c_out);
                }
            }
        }
    }
}


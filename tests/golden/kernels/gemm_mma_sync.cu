// c[i, j] = cast(bf16, sum_k cast(f32, a[i, k]) * cast(f32, b[j, k]))
// inputs    a bf16 [256, 128], b bf16 [192, 128]
// 128 threads, 61440 bytes of shared memory

namespace tw {
#ifndef TW_EMULATED
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

/// Of shared memory, in its own window.
__device__ inline unsigned shared_address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

/// Starts to copy N neighbouring elements, 4, 8 or 16 bytes, from global to shared memory; both are aligned to that.
template <int N, class T>
__device__ inline void copy_async(T* shared, const T* global) {
    constexpr int bytes = N * sizeof(T);
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "copy_async moves 4, 8 or 16 bytes");
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

/// Likewise, or zeros where the elements are not there; then `global` may be any address.
template <int N, class T>
__device__ inline void copy_async_or_zero(T* shared, const T* global, bool there) {
    constexpr int bytes = N * sizeof(T);
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "copy_async_or_zero moves 4, 8 or 16 bytes");
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
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Until at most the last `pending` groups of this thread are under way. Others see the copied after a barrier.
template <int pending>
__device__ inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
}

/// Elements of 4 bytes together as one register, the first lowest; and back.
template <class T>
__device__ inline unsigned pack_register(const T* elements) {
    Vector<4 / sizeof(T), T> vector;
#pragma unroll
    for (int i = 0; i < 4 / (int)sizeof(T); ++i) vector.elements[i] = elements[i];
    return reinterpret_cast<const unsigned&>(vector);
}
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
#endif
}  // namespace tw

struct Shared {
    alignas(16) tw::bf16 a_shared[3][128][40];
    alignas(16) tw::bf16 b_shared[3][128][40];
};

extern "C" __global__ void __launch_bounds__(128, 1)
c_kernel(const tw::bf16* __restrict__ a, const tw::bf16* __restrict__ b, tw::bf16* __restrict__ c) {
    Shared& shared = tw::shared_memory<Shared>();
    const int jo = blockIdx.y;
    const int ioi = blockIdx.x;
    const int thread = threadIdx.x;
    const int iio = thread / 64;
    const int jio = thread / 32 % 2;
    const int row = thread / 4;
    const int lane_row = row % 8;
    const int lane_column = thread % 4;
    float c_sum[4][8][4];
    // c: start
    #pragma unroll
    for (int iii_tile = 0; iii_tile < 4; ++iii_tile) {
        #pragma unroll
        for (int jii_tile = 0; jii_tile < 8; ++jii_tile) {
            #pragma unroll
            for (int iii_half = 0; iii_half < 2; ++iii_half) {
                #pragma unroll
                for (int jii_pair = 0; jii_pair < 2; ++jii_pair) {
                    c_sum[iii_tile][jii_tile][iii_half * 2 + jii_pair] = 0.0f;
                }
            }
        }
    }

    const int a_offset = ioi * 16384 + row * 128 + lane_column * 8;
    const int b_offset = jo * 16384 + row * 128 + lane_column * 8;
    for (int stage = 0; stage < 2; ++stage) {
        // [12] a_shared: copy asynchronously
        #pragma unroll
        for (int step = 0; step < 4; ++step) {
            tw::copy_async<8>(&shared.a_shared[stage][row + step * 32][lane_column * 8], &a[a_offset + stage * 32 + step * 4096]);
        }
        // [13] b_shared: copy asynchronously
        #pragma unroll
        for (int step = 0; step < 4; ++step) {
            tw::copy_async_or_zero<8>(&shared.b_shared[stage][row + step * 32][lane_column * 8], &b[b_offset + stage * 32 + step * 4096], jo * 128 + step * 32 + row < 192);
        }
        tw::commit_copies();
    }

    const int a_shared_index_1 = iio * 64 + thread % 16;
    const int a_shared_row = thread / 16;
    const int a_shared_column = a_shared_row % 2;
    const int b_shared_index_1 = jio * 64 + a_shared_column * 8 + thread % 8;
    for (int ko = 0; ko < 4; ++ko) {
        tw::wait_copies<1>();
        const int a_shared_column_2 = ko % 3;
        __syncthreads();
        // [12] a_shared: copy asynchronously
        if (ko < 2) {
            const int a_shared_column_3 = (ko + 2) % 3;
            #pragma unroll
            for (int step = 0; step < 4; ++step) {
                tw::copy_async<8>(&shared.a_shared[a_shared_column_3][row + step * 32][lane_column * 8], &a[a_offset + ko * 32 + step * 4096 + 64]);
            }
        }
        // [13] b_shared: copy asynchronously
        if (ko < 2) {
            const int b_shared_column = (ko + 2) % 3;
            #pragma unroll
            for (int step = 0; step < 4; ++step) {
                tw::copy_async_or_zero<8>(&shared.b_shared[b_shared_column][row + step * 32][lane_column * 8], &b[b_offset + ko * 32 + step * 4096 + 64], jo * 128 + step * 32 + row < 192);
            }
        }
        tw::commit_copies();
        #pragma unroll
        for (int ki_step = 0; ki_step < 2; ++ki_step) {
            tw::bf16 a_shared_fragment[4][2][2][2];
            tw::bf16 b_shared_fragment[8][2][2];
            // [14] a_shared_fragment: load matrices
            #pragma unroll
            for (int row_2 = 0; row_2 < 4; ++row_2) {
                tw::ldmatrix<4>(a_shared_fragment[row_2][0][0], &shared.a_shared[a_shared_column_2][a_shared_index_1 + row_2 * 16][a_shared_column * 8 + ki_step * 16]);
            }
            // [14] b_shared_fragment: load matrices
            #pragma unroll
            for (int column_2 = 0; column_2 < 4; ++column_2) {
                tw::ldmatrix<4>(b_shared_fragment[column_2 * 2][0], &shared.b_shared[a_shared_column_2][b_shared_index_1 + column_2 * 16][ki_step * 16 + thread / 8 % 2 * 8]);
            }
            #pragma unroll
            for (int row_2 = 0; row_2 < 4; ++row_2) {
                #pragma unroll
                for (int column = 0; column < 8; ++column) {
                    tw::mma_m16n8k16(c_sum[row_2][column], a_shared_fragment[row_2][0][0], b_shared_fragment[column][0]);
                }
            }
        }
    }

    const int c_offset = ioi * 24576 + iio * 12288 + lane_row * 192 + jo * 128 + jio * 64 + lane_column * 2;
    // c
    #pragma unroll
    for (int iii_tile = 0; iii_tile < 4; ++iii_tile) {
        #pragma unroll
        for (int jii_tile = 0; jii_tile < 8; ++jii_tile) {
            if (jo * 64 + jio * 32 + jii_tile * 4 + lane_column < 96) {
                #pragma unroll
                for (int iii_half = 0; iii_half < 2; ++iii_half) {
                    tw::bf16 c_out[2];
                    #pragma unroll
                    for (int jii_pair = 0; jii_pair < 2; ++jii_pair) {
                        c_out[jii_pair] = tw::to_bf16(c_sum[iii_tile][jii_tile][iii_half * 2 + jii_pair]);
                    }
                    tw::store<2>(&c[c_offset + iii_tile * 3072 + jii_tile * 8 + iii_half * 1536], c_out);
                }
            }
        }
    }
}


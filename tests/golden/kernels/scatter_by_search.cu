// gradient[i, j] = sum_p select(cast(i64, ids[p]) == i, cast(f32, y_gradient[p, j]), 0.0)
// inputs    ids i32 [50], y_gradient bf16 [50, 64]
// 256 threads, 9216 bytes of shared memory

namespace tw {
#ifndef TW_EMULATED
struct bf16 { unsigned short bits; };

/// A float's bits, and back.
__device__ inline unsigned float_bits(float x) { return __float_as_uint(x); }
__device__ inline float bits_float(unsigned bits) { return __uint_as_float(bits); }

/// Until all that was launched before this kernel has finished and its results are visible.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

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
#endif

__device__ inline float to_f32(bf16 x) { return bits_float((unsigned)x.bits << 16); }
}  // namespace tw

struct Shared {
    alignas(16) float gradient_sum_meet[8][32][9];
};

extern "C" __global__ void __launch_bounds__(256, 1)
gradient_kernel(const int* __restrict__ ids, const tw::bf16* __restrict__ y_gradient, float* __restrict__ gradient) {
    Shared& shared = tw::shared_memory<Shared>();
    const int i_jo = blockIdx.x;
    const int thread = threadIdx.x;
    tw::wait_for_previous();

    const int pi = thread / 32;
    const int jio = thread % 32;
    float gradient_sum[8];
    // gradient: start
    #pragma unroll
    for (int jii = 0; jii < 8; ++jii) gradient_sum[jii] = 0.0f;

    // gradient: accumulate
    if (jio < 8) {
        const int y_gradient_offset = pi * 64 + jio * 8;
        #pragma unroll
        for (int po = 0; po < 7; ++po) {
            if (po * 8 + pi < 50) {
                #pragma unroll
                for (int jii = 0; jii < 8; ++jii) {
                    gradient_sum[jii] += i_jo == ids[po * 8 + pi] ? tw::to_f32(y_gradient[y_gradient_offset + po * 512 + jii]) : 0.0f;
                }
            }
        }
    }

    // gradient: combine the threads' parts
    #pragma unroll
    for (int jii = 0; jii < 8; ++jii) shared.gradient_sum_meet[pi][jio][jii] = gradient_sum[jii];
    __syncthreads();
    #pragma unroll
    for (int jii = 0; jii < 8; ++jii) {
        float gradient_sum_parts[8];
        // gradient: combine the threads' parts
        #pragma unroll
        for (int part = 0; part < 8; ++part) {
            gradient_sum_parts[part] = shared.gradient_sum_meet[part][jio][jii];
        }
        #pragma unroll
        for (int pair = 0; pair < 4; ++pair) gradient_sum_parts[pair * 2] += gradient_sum_parts[pair * 2 + 1];
        #pragma unroll
        for (int pair = 0; pair < 2; ++pair) gradient_sum_parts[pair * 4] += gradient_sum_parts[pair * 4 + 2];
        #pragma unroll
        for (int pair = 0; pair < 1; ++pair) gradient_sum_parts[pair * 8] += gradient_sum_parts[pair * 8 + 4];
        gradient_sum[jii] = gradient_sum_parts[0];
    }

    // gradient
    if (jio < 8 && pi == 0) {
        const int gradient_offset = i_jo * 64 + jio * 8;
        #pragma unroll
        for (int jii_vector = 0; jii_vector < 2; ++jii_vector) {
            tw::store<4>(&gradient[gradient_offset + jii_vector * 4], &gradient_sum[jii_vector * 4]);
        }
    }
}


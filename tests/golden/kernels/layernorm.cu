// row[i, j] = x[i, j]
// mean[i] = (sum_k cast(f32, row[i, k])) / 4096.0
// scale[i] = rsqrt((sum_k (cast(f32, row[i, k]) - mean[i]) * (cast(f32, row[i, k]) - mean[i])) / 4096.0 + 1e-05)
// y[i, j] = cast(bf16, (cast(f32, row[i, j]) - mean[i]) * scale[i] * cast(f32, gain[j]) + cast(f32, bias[j]))
// inputs    x bf16 [4096, 4096], gain bf16 [4096], bias bf16 [4096]
// 128 threads, 32 bytes of shared memory

namespace tw {
#ifndef TW_EMULATED
struct bf16 { unsigned short bits; };

/// A float's bits, and back.
__device__ inline unsigned float_bits(float x) { return __float_as_uint(x); }
__device__ inline float bits_float(unsigned bits) { return __uint_as_float(bits); }

__device__ inline bf16 to_bf16(float x) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

/// Until all that was launched before this kernel has finished and its results are visible.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Once each block has called this or ended, blocks of the next kernel may start, and wait.
__device__ inline void start_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/// Elements that move together.
template <int N, class T>
struct alignas(N * sizeof(T)) Vector { T elements[N]; };

/// N neighbouring elements by one access.
template <int N, class T>
__device__ inline void load(T* registers, const T* memory) {
    const Vector<N, T> vector = *reinterpret_cast<const Vector<N, T>*>(memory);
#pragma unroll
    for (int i = 0; i < N; ++i) registers[i] = vector.elements[i];
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

/// The value of the lane whose number differs by these bits.
template <class T>
__device__ inline T shuffle_xor(T value, int lane_bits) { return __shfl_xor_sync(0xffffffff, value, lane_bits); }

__device__ inline float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline double fma(double a, double b, double c) { return __fma_rn(a, b, c); }

__device__ inline float sqrt(float x) { return __fsqrt_rn(x); }
__device__ inline double sqrt(double x) { return __dsqrt_rn(x); }
#endif

__device__ inline float to_f32(bf16 x) { return bits_float((unsigned)x.bits << 16); }

__device__ inline float rsqrt(float x) { return 1.0f / sqrt(x); }
__device__ inline double rsqrt(double x) { return 1.0 / sqrt(x); }
}  // namespace tw

struct Shared {
    alignas(16) float mean_sum_meet[4];
    alignas(16) float scale_sum_meet[4];
};

extern "C" __global__ void __launch_bounds__(128, 1)
y_kernel(const tw::bf16* __restrict__ x,
         const tw::bf16* __restrict__ gain,
         const tw::bf16* __restrict__ bias,
         tw::bf16* __restrict__ y) {
    Shared& shared = tw::shared_memory<Shared>();
    const int i = blockIdx.x;
    const int jio = threadIdx.x;
    tw::wait_for_previous();
    tw::start_next();

    tw::bf16 row[32];
    float mean[1];
    float scale[1];
    const int x_offset = i * 4096 + jio * 8;
    // [5] row
    #pragma unroll
    for (int jo = 0; jo < 4; ++jo) {
        tw::bf16 x_values[8];
        tw::load<8>(x_values, &x[x_offset + jo * 1024]);
        #pragma unroll
        for (int jii = 0; jii < 8; ++jii) row[jo * 8 + jii] = x_values[jii];
    }

    float mean_sum;
    // [3] mean: start
    mean_sum = 0.0f;

    // [3] mean: accumulate
    #pragma unroll
    for (int ko = 0; ko < 4; ++ko) {
        #pragma unroll
        for (int kii = 0; kii < 8; ++kii) mean_sum += tw::to_f32(row[ko * 8 + kii]);
    }

    // [3] mean: combine the threads' parts
    mean_sum += tw::shuffle_xor(mean_sum, 1);
    mean_sum += tw::shuffle_xor(mean_sum, 2);
    mean_sum += tw::shuffle_xor(mean_sum, 4);
    mean_sum += tw::shuffle_xor(mean_sum, 8);
    mean_sum += tw::shuffle_xor(mean_sum, 16);

    const int lane = jio % 32;
    const int warp = jio / 32;
    if (lane == 0) shared.mean_sum_meet[warp] = mean_sum;
    __syncthreads();

    float mean_sum_parts[4];
    tw::load<4>(mean_sum_parts, shared.mean_sum_meet);
    #pragma unroll
    for (int pair = 0; pair < 2; ++pair) mean_sum_parts[pair * 2] += mean_sum_parts[pair * 2 + 1];
    #pragma unroll
    for (int pair = 0; pair < 1; ++pair) mean_sum_parts[pair * 4] += mean_sum_parts[pair * 4 + 2];
    mean_sum = mean_sum_parts[0];

    // [3] mean
    mean[0] = mean_sum * 0.00024414062f;

    float scale_sum;
    // [1] scale: start
    scale_sum = 0.0f;

    // [1] scale: accumulate
    #pragma unroll
    for (int ko = 0; ko < 4; ++ko) {
        #pragma unroll
        for (int kii = 0; kii < 8; ++kii) {
            scale_sum = tw::fma(tw::to_f32(row[ko * 8 + kii]) - mean[0], tw::to_f32(row[ko * 8 + kii]) - mean[0], scale_sum);
        }
    }

    // [1] scale: combine the threads' parts
    scale_sum += tw::shuffle_xor(scale_sum, 1);
    scale_sum += tw::shuffle_xor(scale_sum, 2);
    scale_sum += tw::shuffle_xor(scale_sum, 4);
    scale_sum += tw::shuffle_xor(scale_sum, 8);
    scale_sum += tw::shuffle_xor(scale_sum, 16);
    if (lane == 0) shared.scale_sum_meet[warp] = scale_sum;
    __syncthreads();

    float scale_sum_parts[4];
    tw::load<4>(scale_sum_parts, shared.scale_sum_meet);
    #pragma unroll
    for (int pair = 0; pair < 2; ++pair) scale_sum_parts[pair * 2] += scale_sum_parts[pair * 2 + 1];
    #pragma unroll
    for (int pair = 0; pair < 1; ++pair) scale_sum_parts[pair * 4] += scale_sum_parts[pair * 4 + 2];
    scale_sum = scale_sum_parts[0];

    // [1] scale
    scale[0] = tw::rsqrt(tw::fma(scale_sum, 0.00024414062f, 1e-05f));

    // y
    #pragma unroll
    for (int jo = 0; jo < 4; ++jo) {
        tw::bf16 gain_values[8];
        tw::load<8>(gain_values, &gain[jo * 1024 + jio * 8]);
        tw::bf16 bias_values[8];
        tw::load<8>(bias_values, &bias[jo * 1024 + jio * 8]);
        tw::bf16 y_out[8];
        #pragma unroll
        for (int jii = 0; jii < 8; ++jii) {
            y_out[jii] = tw::to_bf16(tw::fma((tw::to_f32(row[jo * 8 + jii]) - mean[0]) * scale[0], tw::to_f32(gain_values[jii]), tw::to_f32(bias_values[jii])));
        }
        tw::store<8>(&y[x_offset + jo * 1024], y_out);
    }
}


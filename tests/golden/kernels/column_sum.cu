// y[i] = cast(bf16, sum_k cast(f32, x[k, i]))
// inputs    x bf16 [4096, 1024]
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
#endif

__device__ inline float to_f32(bf16 x) { return bits_float((unsigned)x.bits << 16); }
}  // namespace tw

struct Shared {
    alignas(16) float y_partial_sum_meet[8][32][9];
};

extern "C" __global__ void __launch_bounds__(256, 1)
y_partial_kernel(const tw::bf16* __restrict__ x, float* __restrict__ y_partial) {
    Shared& shared = tw::shared_memory<Shared>();
    const int ko_io = blockIdx.x;
    const int thread = threadIdx.x;
    tw::wait_for_previous();

    const int kii = thread / 32;
    const int iio = thread % 32;
    float y_partial_sum[8];
    // [1] y_partial: start
    #pragma unroll
    for (int iii = 0; iii < 8; ++iii) y_partial_sum[iii] = 0.0f;

    const int x_offset = ko_io / 4 * 65536 + kii * 1024 + ko_io % 4 * 256 + iio * 8;
    // [1] y_partial: accumulate
    #pragma unroll
    for (int kio = 0; kio < 8; ++kio) {
        tw::bf16 x_values[8];
        tw::load<8>(x_values, &x[x_offset + kio * 8192]);
        #pragma unroll
        for (int iii = 0; iii < 8; ++iii) y_partial_sum[iii] += tw::to_f32(x_values[iii]);
    }

    // [1] y_partial: combine the threads' parts
    #pragma unroll
    for (int iii = 0; iii < 8; ++iii) shared.y_partial_sum_meet[kii][iio][iii] = y_partial_sum[iii];
    __syncthreads();
    #pragma unroll
    for (int iii = 0; iii < 8; ++iii) {
        float y_partial_sum_parts[8];
        // [1] y_partial: combine the threads' parts
        #pragma unroll
        for (int part = 0; part < 8; ++part) {
            y_partial_sum_parts[part] = shared.y_partial_sum_meet[part][iio][iii];
        }
        #pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            y_partial_sum_parts[pair * 2] += y_partial_sum_parts[pair * 2 + 1];
        }
        #pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            y_partial_sum_parts[pair * 4] += y_partial_sum_parts[pair * 4 + 2];
        }
        #pragma unroll
        for (int pair = 0; pair < 1; ++pair) {
            y_partial_sum_parts[pair * 8] += y_partial_sum_parts[pair * 8 + 4];
        }
        y_partial_sum[iii] = y_partial_sum_parts[0];
    }

    // [1] y_partial
    if (kii == 0) {
        const int y_partial_offset = ko_io * 256 + iio * 8;
        #pragma unroll
        for (int iii_vector = 0; iii_vector < 2; ++iii_vector) {
            tw::store<4>(&y_partial[y_partial_offset + iii_vector * 4], &y_partial_sum[iii_vector * 4]);
        }
    }
}

// y[i] = cast(bf16, sum_k cast(f32, x[k, i]))
// inputs    x bf16 [4096, 1024]
// 256 threads, 1024 bytes of shared memory

namespace tw {
#ifndef TW_EMULATED
struct bf16 { unsigned short bits; };

__device__ inline bf16 to_bf16(float x) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

/// Until all that was launched before this kernel has finished and its results are visible.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return *reinterpret_cast<T*>(dynamic_shared);
}
#endif
}  // namespace tw

struct Shared {
    alignas(16) float y_sum_meet[8][32];
};

extern "C" __global__ void __launch_bounds__(256, 1)
y_kernel(tw::bf16* __restrict__ y, const float* __restrict__ y_partial) {
    Shared& shared = tw::shared_memory<Shared>();
    const int io = blockIdx.x;
    const int thread = threadIdx.x;
    tw::wait_for_previous();

    const int koi = thread / 32;
    const int iio = thread % 32;
    float y_sum;
    // y: start
    y_sum = 0.0f;

    const int y_partial_offset = koi * 1024 + io * 32 + iio;
    // y: accumulate
    #pragma unroll
    for (int koo = 0; koo < 8; ++koo) y_sum += y_partial[y_partial_offset + koo * 8192];

    // y: combine the threads' parts
    shared.y_sum_meet[koi][iio] = y_sum;
    __syncthreads();

    float y_sum_parts[8];
    #pragma unroll
    for (int part = 0; part < 8; ++part) y_sum_parts[part] = shared.y_sum_meet[part][iio];
    #pragma unroll
    for (int pair = 0; pair < 4; ++pair) y_sum_parts[pair * 2] += y_sum_parts[pair * 2 + 1];
    #pragma unroll
    for (int pair = 0; pair < 2; ++pair) y_sum_parts[pair * 4] += y_sum_parts[pair * 4 + 2];
    #pragma unroll
    for (int pair = 0; pair < 1; ++pair) y_sum_parts[pair * 8] += y_sum_parts[pair * 8 + 4];
    y_sum = y_sum_parts[0];

    // y
    if (koi == 0) y[io * 32 + iio] = tw::to_bf16(y_sum);
}


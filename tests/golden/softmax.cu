// y[i, j] = exp(x[i, j] - max_j x[i, j]) / sum_j exp(x[i, j] - max_j x[i, j])        4096 x 1000
// 128 threads, 512 bytes of shared memory

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

/// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return *reinterpret_cast<T*>(dynamic_shared);
}

template <class T>
__device__ inline T infinity() { return (T)__int_as_float(0x7f800000); }

__device__ inline float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

/// The other operand if one is NaN; -0 is less than 0.
__device__ inline float max(float a, float b) { return fmaxf(a, b); }

/// 2^x to 2.3 ulp; 0 instead of subnormal numbers.
__device__ inline float ex2_approx_ftz(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// 12582913 + floor(x / ln 2 + 126), from 12582913 to 12583166: shifted left by 23, its bits are those of the power of
/// two that e^x begins with. Of NaN the least one.
__device__ inline float whole_power(float x) {
    return __fmaf_rd(__saturatef(__fmaf_rn(x, 0.00570235215f, 0.498023719f)), 253.0f, 12582913.0f);
}
}  // namespace tw

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }

/// 2^whole 2^part: what the rounding of x / ln 2 loses would cost up to 2^7 ulp.
__device__ inline float exp(float x) {
    const float whole = whole_power(x);
    const float part = fma(x, 1.92596303e-8f, fma(x, 1.44269502f, 12583039.0f - whole));  // 1 / ln 2 in two parts
    return ex2_approx_ftz(part) * bits_float(float_bits(whole) << 23);
}
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

struct Shared {
    alignas(16) float parts[128];
};

extern "C" __global__ void __launch_bounds__(128, 1)
softmax_kernel(const tw::bf16* __restrict__ x, tw::bf16* __restrict__ y) {
    Shared& shared = tw::shared_memory<Shared>();
    const int block_x = blockIdx.x;
    const int thread = threadIdx.x;
    float most;
    float total;
    // [3] most: the row's maximum
    most = -tw::infinity<float>();

    const int x_offset = block_x * 1000 + thread;
    for (int step = 0; step < 8; ++step) {
        if (step * 128 + thread < 1000) most = tw::max(most, tw::to_f32(x[x_offset + step * 128]));
    }
    shared.parts[thread] = most;
    most = -tw::infinity<float>();
    __syncthreads();
    for (int part = 0; part < 128; ++part) most = tw::max(most, shared.parts[part]);

    // [4] total: the sum of exponentials
    total = 0.0f;
    for (int step = 0; step < 8; ++step) {
        if (step * 128 + thread < 1000) total += tw::exp(tw::to_f32(x[x_offset + step * 128]) - most);
    }
    __syncthreads();
    shared.parts[thread] = total;
    total = 0.0f;
    __syncthreads();
    for (int part = 0; part < 128; ++part) total += shared.parts[part];

    // [5] y
    for (int step = 0; step < 8; ++step) {
        if (step * 128 + thread < 1000) {
            y[x_offset + step * 128] = tw::to_bf16(tw::exp(tw::to_f32(x[x_offset + step * 128]) - most) / total);
        }
    }
}

// x_row[i, j] = x[i, j]
// largest[i] = max_k cast(f32, x_row[i, k])
// shifted[i, j] = exp(cast(f32, x_row[i, j]) - largest[i])
// scale[i] = 1.0 / (sum_k shifted[i, k])
// y[i, j] = cast(bf16, shifted[i, j] * scale[i])
// inputs    x bf16 [4096, 4096]
// schedule  [0] s.bind(i, grid.x);
//           [1] s.at(scale, i);
//           [2] s.set_memory(scale, Memory::Registers);
//           [3] s.at(shifted, i);
//           [4] s.set_memory(shifted, Memory::Registers);
//           [5] s.at(largest, i);
//           [6] s.set_memory(largest, Memory::Registers);
//           [7] s.at(x_row, i);
//           [8] s.set_memory(x_row, Memory::Registers);
//           [9] auto [step, in_step] = s.split(j_x_row, 1024, Tail::Mask, {"step", "in_step"});
//           [10] auto [share, element] = s.split(in_step, 8, {"share", "element"});
//           [11] s.bind(share, thread);
//           [12] s.bind(element, vector);
//           [13] auto [step_2, in_step_2] = s.split(k, 1024, Tail::Mask, {"step", "in_step"});
//           [14] auto [share_2, element_2] = s.split(in_step_2, 8, {"share", "element"});
//           [15] s.bind(share_2, thread);
//           [16] s.bind(element_2, unrolled);
//           [17] auto [step_3, in_step_3] = s.split(j_shifted, 1024, Tail::Mask, {"step", "in_step"});
//           [18] auto [share_3, element_3] = s.split(in_step_3, 8, {"share", "element"});
//           [19] s.bind(share_3, thread);
//           [20] s.bind(element_3, vector);
//           [21] auto [step_4, in_step_4] = s.split(k_scale, 1024, Tail::Mask, {"step", "in_step"});
//           [22] auto [share_4, element_4] = s.split(in_step_4, 8, {"share", "element"});
//           [23] s.bind(share_4, thread);
//           [24] s.bind(element_4, unrolled);
//           [25] auto [step_5, in_step_5] = s.split(j, 1024, Tail::Mask, {"step", "in_step"});
//           [26] auto [share_5, element_5] = s.split(in_step_5, 8, {"share", "element"});
//           [27] s.bind(share_5, thread);
//           [28] s.bind(element_5, vector);
// 128 threads, 32 bytes of shared memory

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

/// Once each block has called this or ended, blocks of the next kernel may start, and wait.
__device__ inline void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

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

/// The value of the lane whose number differs by these bits.
template <class T>
__device__ inline T shuffle_xor(T value, int lane_bits) { return __shfl_xor_sync(0xffffffff, value, lane_bits); }

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
    alignas(16) float largest_max_meet[4];
    alignas(16) float scale_sum_meet[4];
};

extern "C" __global__ void __launch_bounds__(128, 1) y_kernel(const tw::bf16* __restrict__ x,
                                                              tw::bf16* __restrict__ y) {
    Shared& shared = tw::shared_memory<Shared>();
    const int i = blockIdx.x;
    const int share = threadIdx.x;
    tw::griddepcontrol_wait();
    tw::griddepcontrol_launch_dependents();

    tw::bf16 x_row[32];
    float largest;
    float shifted[32];
    float scale;
    const int x_offset = i * 4096 + share * 8;
    // [7] x_row
    #pragma unroll
    for (int step = 0; step < 4; ++step) {
        tw::bf16 x_values[8];
        tw::load<8>(x_values, &x[x_offset + step * 1024]);
        #pragma unroll
        for (int element = 0; element < 8; ++element) x_row[step * 8 + element] = x_values[element];
    }

    float largest_max;
    // [5] largest: start
    largest_max = -tw::infinity<float>();

    // [5] largest: accumulate
    #pragma unroll
    for (int element = 0; element < 32; ++element) {
        largest_max = tw::max(largest_max, tw::to_f32(x_row[element]));
    }

    // [5] largest: combine the threads' parts
    largest_max = tw::max(largest_max, tw::shuffle_xor(largest_max, 1));
    largest_max = tw::max(largest_max, tw::shuffle_xor(largest_max, 2));
    largest_max = tw::max(largest_max, tw::shuffle_xor(largest_max, 4));
    largest_max = tw::max(largest_max, tw::shuffle_xor(largest_max, 8));
    largest_max = tw::max(largest_max, tw::shuffle_xor(largest_max, 16));

    const int lane = share % 32;
    const int warp = share / 32;
    if (lane == 0) shared.largest_max_meet[warp] = largest_max;
    __syncthreads();

    float largest_max_parts[4];
    tw::load<4>(largest_max_parts, shared.largest_max_meet);
    #pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
        largest_max_parts[pair * 2] = tw::max(largest_max_parts[pair * 2], largest_max_parts[pair * 2 + 1]);
    }
    largest_max_parts[0] = tw::max(largest_max_parts[0], largest_max_parts[2]);
    largest_max = largest_max_parts[0];

    // [5] largest
    largest = largest_max;

    // [3] shifted
    #pragma unroll
    for (int element = 0; element < 32; ++element) {
        shifted[element] = tw::exp(tw::to_f32(x_row[element]) - largest);
    }

    float scale_sum;
    // [1] scale: start
    scale_sum = 0.0f;

    // [1] scale: accumulate
    #pragma unroll
    for (int element = 0; element < 32; ++element) scale_sum += shifted[element];

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
    scale_sum_parts[0] += scale_sum_parts[2];
    scale_sum = scale_sum_parts[0];

    // [1] scale
    scale = 1.0f / scale_sum;

    // y
    #pragma unroll
    for (int step = 0; step < 4; ++step) {
        tw::bf16 y_out[8];
        #pragma unroll
        for (int element = 0; element < 8; ++element) {
            y_out[element] = tw::to_bf16(shifted[step * 8 + element] * scale);
        }
        tw::store<8>(&y[x_offset + step * 1024], y_out);
    }
}


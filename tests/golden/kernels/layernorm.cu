// x_row[i, j] = x[i, j]
// mean[i] = (sum_k cast(f32, x_row[i, k])) / 4096.0
// scale[i] = rsqrt((sum_k (cast(f32, x_row[i, k]) - mean[i]) * (cast(f32, x_row[i, k]) - mean[i])) / 4096.0 + 1e-05)
// y[i, j] = cast(bf16, (cast(f32, x_row[i, j]) - mean[i]) * scale[i] * cast(f32, gain[j]) + cast(f32, bias[j]))
// inputs    x bf16 [4096, 4096], gain bf16 [4096], bias bf16 [4096]
// schedule  [0] s.bind(i, grid.x);
//           [1] s.at(scale, i);
//           [2] s.set_memory(scale, Memory::Registers);
//           [3] s.at(mean, i);
//           [4] s.set_memory(mean, Memory::Registers);
//           [5] s.at(x_row, i);
//           [6] s.set_memory(x_row, Memory::Registers);
//           [7] auto [step, in_step] = s.split(j_x_row, 1024, Tail::Mask, {"step", "in_step"});
//           [8] auto [share, element] = s.split(in_step, 8, {"share", "element"});
//           [9] s.bind(share, thread);
//           [10] s.bind(element, vector);
//           [11] auto [step_2, in_step_2] = s.split(k, 1024, Tail::Mask, {"step", "in_step"});
//           [12] auto [share_2, element_2] = s.split(in_step_2, 8, {"share", "element"});
//           [13] s.bind(share_2, thread);
//           [14] s.bind(element_2, unrolled);
//           [15] auto [step_3, in_step_3] = s.split(k_scale, 1024, Tail::Mask, {"step", "in_step"});
//           [16] auto [share_3, element_3] = s.split(in_step_3, 8, {"share", "element"});
//           [17] s.bind(share_3, thread);
//           [18] s.bind(element_3, unrolled);
//           [19] auto [step_4, in_step_4] = s.split(j, 1024, Tail::Mask, {"step", "in_step"});
//           [20] auto [share_4, element_4] = s.split(in_step_4, 8, {"share", "element"});
//           [21] s.bind(share_4, thread);
//           [22] s.bind(element_4, vector);
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

__device__ inline float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

__device__ inline float sqrt(float x) { return __fsqrt_rn(x); }
}  // namespace tw

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }

__device__ inline float rsqrt(float x) { return 1.0f / sqrt(x); }
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

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
    const int share = threadIdx.x;
    tw::griddepcontrol_wait();
    tw::griddepcontrol_launch_dependents();

    tw::bf16 x_row[32];
    float mean;
    float scale;
    const int x_offset = i * 4096 + share * 8;
    // [5] x_row
    #pragma unroll
    for (int step = 0; step < 4; ++step) {
        tw::bf16 x_values[8];
        tw::load<8>(x_values, &x[x_offset + step * 1024]);
        #pragma unroll
        for (int element = 0; element < 8; ++element) x_row[step * 8 + element] = x_values[element];
    }

    float mean_sum;
    // [3] mean: start
    mean_sum = 0.0f;

    // [3] mean: accumulate
    #pragma unroll
    for (int element = 0; element < 32; ++element) mean_sum += tw::to_f32(x_row[element]);

    // [3] mean: combine the threads' parts
    mean_sum += tw::shuffle_xor(mean_sum, 1);
    mean_sum += tw::shuffle_xor(mean_sum, 2);
    mean_sum += tw::shuffle_xor(mean_sum, 4);
    mean_sum += tw::shuffle_xor(mean_sum, 8);
    mean_sum += tw::shuffle_xor(mean_sum, 16);

    const int lane = share % 32;
    const int warp = share / 32;
    if (lane == 0) shared.mean_sum_meet[warp] = mean_sum;
    __syncthreads();

    float mean_sum_parts[4];
    tw::load<4>(mean_sum_parts, shared.mean_sum_meet);
    #pragma unroll
    for (int pair = 0; pair < 2; ++pair) mean_sum_parts[pair * 2] += mean_sum_parts[pair * 2 + 1];
    mean_sum_parts[0] += mean_sum_parts[2];
    mean_sum = mean_sum_parts[0];

    // [3] mean
    mean = mean_sum * 0.00024414062f;

    float scale_sum;
    // [1] scale: start
    scale_sum = 0.0f;

    // [1] scale: accumulate
    #pragma unroll
    for (int element = 0; element < 32; ++element) {
        scale_sum = tw::fma(tw::to_f32(x_row[element]) - mean, tw::to_f32(x_row[element]) - mean, scale_sum);
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
    scale_sum_parts[0] += scale_sum_parts[2];
    scale_sum = scale_sum_parts[0];

    // [1] scale
    scale = tw::rsqrt(tw::fma(scale_sum, 0.00024414062f, 1e-05f));

    // y
    #pragma unroll
    for (int step = 0; step < 4; ++step) {
        tw::bf16 gain_values[8];
        tw::load<8>(gain_values, &gain[step * 1024 + share * 8]);
        tw::bf16 bias_values[8];
        tw::load<8>(bias_values, &bias[step * 1024 + share * 8]);
        tw::bf16 y_out[8];
        #pragma unroll
        for (int element = 0; element < 8; ++element) {
            y_out[element] =
                tw::to_bf16(tw::fma((tw::to_f32(x_row[step * 8 + element]) - mean) * scale,
                                    tw::to_f32(gain_values[element]), tw::to_f32(bias_values[element])));
        }
        tw::store<8>(&y[x_offset + step * 1024], y_out);
    }
}


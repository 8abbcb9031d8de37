// gradient[i, j] = sum_p select(cast(i64, ids[p]) == i, cast(f32, y_gradient[p, j]), 0.0)
// inputs    ids i32 [60], y_gradient bf16 [60, 64]
// schedule  [0] Loop all = s.fuse(i, j, "all");
//           [1] auto [block, result] = s.split(all, 256, Tail::Mask, {"block", "result"});
//           [2] s.bind(block, grid.x);
//           [3] s.bind(result, thread);
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
}  // namespace tw

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256, 1)
gradient_kernel(const int* __restrict__ ids, const tw::bf16* __restrict__ y_gradient, float* __restrict__ gradient) {
    const int block = blockIdx.x;
    const int result = threadIdx.x;
    tw::griddepcontrol_wait();

    float gradient_sum;
    // gradient: start
    gradient_sum = 0.0f;

    // gradient: accumulate
    #pragma unroll 1
    for (int p_vector_outer = 0; p_vector_outer < 3; ++p_vector_outer) {
        #pragma unroll
        for (int p_vector_inner = 0; p_vector_inner < 5; ++p_vector_inner) {
            const int p_vector = p_vector_outer * 5 + p_vector_inner;
            int ids_values[4];
            tw::load<4>(ids_values, &ids[p_vector * 4]);
            #pragma unroll
            for (int p = 0; p < 4; ++p) {
                gradient_sum += block * 4 + result / 64 == ids_values[p] ?
                    tw::to_f32(y_gradient[p_vector * 256 + p * 64 + result % 64]) : 0.0f;
            }
        }
    }

    // gradient
    gradient[block * 256 + result] = gradient_sum;
}


// gradient[i, j] = sum_p select(cast(i64, ids[p]) == i, cast(f32, y_gradient[p, j]), 0.0)
// inputs    ids i32 [50], y_gradient bf16 [50, 64]
// schedule  [0] auto [tile, column, element] = s.split(j, {256, 8}, Tail::Mask, {"tile", "column", "element"});
//           [1] auto [step, row] = s.split(p, 8, Tail::Mask, {"step", "row"});
//           [2] s.order({i, tile, row, column, step, element});
//           [3] Loop block = s.fuse(i, tile, "block");
//           [4] s.bind(block, grid.x);
//           [5] s.bind({row, column}, thread);
//           [6] s.bind(element, vector);
// 256 threads, 9216 bytes of shared memory

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
}  // namespace tw

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

struct Shared {
    alignas(16) float gradient_sum_meet[8][32][9];
};

extern "C" __global__ void __launch_bounds__(256, 1)
gradient_kernel(const int* __restrict__ ids, const tw::bf16* __restrict__ y_gradient, float* __restrict__ gradient) {
    Shared& shared = tw::shared_memory<Shared>();
    const int block = blockIdx.x;
    const int thread = threadIdx.x;
    tw::griddepcontrol_wait();

    const int row = thread / 32;
    const int column = thread % 32;
    float gradient_sum[8];
    // gradient: start
    #pragma unroll
    for (int element = 0; element < 8; ++element) gradient_sum[element] = 0.0f;

    // gradient: accumulate
    if (column < 8) {
        const int y_gradient_offset = row * 64 + column * 8;
        #pragma unroll
        for (int step = 0; step < 7; ++step) {
            if (step * 8 + row < 50) {
                #pragma unroll
                for (int element = 0; element < 8; ++element) {
                    gradient_sum[element] += block == ids[step * 8 + row] ?
                        tw::to_f32(y_gradient[y_gradient_offset + step * 512 + element]) : 0.0f;
                }
            }
        }
    }

    // gradient: combine the threads' parts
    #pragma unroll
    for (int element = 0; element < 8; ++element) {
        shared.gradient_sum_meet[row][column][element] = gradient_sum[element];
    }
    __syncthreads();
    #pragma unroll
    for (int element = 0; element < 8; ++element) {
        float gradient_sum_parts[8];
        // gradient: combine the threads' parts
        #pragma unroll
        for (int part = 0; part < 8; ++part) {
            gradient_sum_parts[part] = shared.gradient_sum_meet[part][column][element];
        }
        #pragma unroll
        for (int pair = 0; pair < 4; ++pair) gradient_sum_parts[pair * 2] += gradient_sum_parts[pair * 2 + 1];
        #pragma unroll
        for (int pair = 0; pair < 2; ++pair) gradient_sum_parts[pair * 4] += gradient_sum_parts[pair * 4 + 2];
        gradient_sum_parts[0] += gradient_sum_parts[4];
        gradient_sum[element] = gradient_sum_parts[0];
    }

    // gradient
    if (column < 8 && row == 0) {
        const int gradient_offset = block * 64 + column * 8;
        #pragma unroll
        for (int element_vector = 0; element_vector < 2; ++element_vector) {
            tw::store<4>(&gradient[gradient_offset + element_vector * 4], &gradient_sum[element_vector * 4]);
        }
    }
}


// y[i] = cast(bf16, sum_k cast(f32, x[k, i]))
// inputs    x bf16 [4096, 1024]
// schedule  [0] auto [chunk, in_chunk] = s.split(k, 64, Tail::Mask, {"chunk", "in_chunk"});
//           [1] Stage y_partial = s.rfactor(y, chunk);
//           [2] auto [tile, in_tile] = s.split(i, 256, Tail::Mask, {"tile", "in_tile"});
//           [3] auto [column, element] = s.split(in_tile, 8, {"column", "element"});
//           [4] auto [step, row] = s.split(in_chunk, 8, Tail::Mask, {"step", "row"});
//           [5] s.order({chunk, tile, row, column, step, element});
//           [6] Loop block = s.fuse(chunk, tile, "block");
//           [7] s.bind(block, grid.x);
//           [8] s.bind({row, column}, thread);
//           [9] s.bind(element, vector);
//           [10] auto [tile_2, column_2] = s.split(i_y, 32, Tail::Mask, {"tile", "column"});
//           [11] auto [step_2, row_2] = s.split(chunk_y, 8, Tail::Mask, {"step", "row"});
//           [12] s.order({tile_2, row_2, column_2, step_2});
//           [13] s.bind(tile_2, grid.x);
//           [14] s.bind({row_2, column_2}, thread);
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
}  // namespace tw

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

struct Shared {
    alignas(16) float y_partial_sum_meet[8][32][9];
};

extern "C" __global__ void __launch_bounds__(256, 1)
y_partial_kernel(const tw::bf16* __restrict__ x, float* __restrict__ y_partial) {
    Shared& shared = tw::shared_memory<Shared>();
    const int block = blockIdx.x;
    const int thread = threadIdx.x;
    tw::griddepcontrol_wait();

    const int row = thread / 32;
    const int column = thread % 32;
    float y_partial_sum[8];
    // [1] y_partial: start
    #pragma unroll
    for (int element = 0; element < 8; ++element) y_partial_sum[element] = 0.0f;

    const int x_offset = block / 4 * 65536 + row * 1024 + block % 4 * 256 + column * 8;
    // [1] y_partial: accumulate
    #pragma unroll
    for (int step = 0; step < 8; ++step) {
        tw::bf16 x_values[8];
        tw::load<8>(x_values, &x[x_offset + step * 8192]);
        #pragma unroll
        for (int element = 0; element < 8; ++element) y_partial_sum[element] += tw::to_f32(x_values[element]);
    }

    // [1] y_partial: combine the threads' parts
    #pragma unroll
    for (int element = 0; element < 8; ++element) {
        shared.y_partial_sum_meet[row][column][element] = y_partial_sum[element];
    }
    __syncthreads();
    #pragma unroll
    for (int element = 0; element < 8; ++element) {
        float y_partial_sum_parts[8];
        // [1] y_partial: combine the threads' parts
        #pragma unroll
        for (int part = 0; part < 8; ++part) {
            y_partial_sum_parts[part] = shared.y_partial_sum_meet[part][column][element];
        }
        #pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            y_partial_sum_parts[pair * 2] += y_partial_sum_parts[pair * 2 + 1];
        }
        #pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            y_partial_sum_parts[pair * 4] += y_partial_sum_parts[pair * 4 + 2];
        }
        y_partial_sum_parts[0] += y_partial_sum_parts[4];
        y_partial_sum[element] = y_partial_sum_parts[0];
    }

    // [1] y_partial
    if (row == 0) {
        const int y_partial_offset = block * 256 + column * 8;
        #pragma unroll
        for (int element_vector = 0; element_vector < 2; ++element_vector) {
            tw::store<4>(&y_partial[y_partial_offset + element_vector * 4], &y_partial_sum[element_vector * 4]);
        }
    }
}

// y[i] = cast(bf16, sum_k cast(f32, x[k, i]))
// inputs    x bf16 [4096, 1024]
// schedule  [0] auto [chunk, in_chunk] = s.split(k, 64, Tail::Mask, {"chunk", "in_chunk"});
//           [1] Stage y_partial = s.rfactor(y, chunk);
//           [2] auto [tile, in_tile] = s.split(i, 256, Tail::Mask, {"tile", "in_tile"});
//           [3] auto [column, element] = s.split(in_tile, 8, {"column", "element"});
//           [4] auto [step, row] = s.split(in_chunk, 8, Tail::Mask, {"step", "row"});
//           [5] s.order({chunk, tile, row, column, step, element});
//           [6] Loop block = s.fuse(chunk, tile, "block");
//           [7] s.bind(block, grid.x);
//           [8] s.bind({row, column}, thread);
//           [9] s.bind(element, vector);
//           [10] auto [tile_2, column_2] = s.split(i_y, 32, Tail::Mask, {"tile", "column"});
//           [11] auto [step_2, row_2] = s.split(chunk_y, 8, Tail::Mask, {"step", "row"});
//           [12] s.order({tile_2, row_2, column_2, step_2});
//           [13] s.bind(tile_2, grid.x);
//           [14] s.bind({row_2, column_2}, thread);
// 256 threads, 1024 bytes of shared memory

// ---- vocabulary: what the GPU has -----------------------------------------------------------------------------------
namespace tw {
struct bf16 { unsigned short bits; };

__device__ inline bf16 to_bf16(float x) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

/// Until all that was launched before this kernel has finished and its results are visible.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return *reinterpret_cast<T*>(dynamic_shared);
}
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

struct Shared {
    alignas(16) float y_sum_meet[8][32];
};

extern "C" __global__ void __launch_bounds__(256, 1)
y_kernel(tw::bf16* __restrict__ y, const float* __restrict__ y_partial) {
    Shared& shared = tw::shared_memory<Shared>();
    const int tile = blockIdx.x;
    const int thread = threadIdx.x;
    tw::griddepcontrol_wait();

    const int row = thread / 32;
    const int column = thread % 32;
    float y_sum;
    // y: start
    y_sum = 0.0f;

    const int y_partial_offset = row * 1024 + tile * 32 + column;
    // y: accumulate
    #pragma unroll
    for (int step = 0; step < 8; ++step) y_sum += y_partial[y_partial_offset + step * 8192];

    // y: combine the threads' parts
    shared.y_sum_meet[row][column] = y_sum;
    __syncthreads();

    float y_sum_parts[8];
    #pragma unroll
    for (int part = 0; part < 8; ++part) y_sum_parts[part] = shared.y_sum_meet[part][column];
    #pragma unroll
    for (int pair = 0; pair < 4; ++pair) y_sum_parts[pair * 2] += y_sum_parts[pair * 2 + 1];
    #pragma unroll
    for (int pair = 0; pair < 2; ++pair) y_sum_parts[pair * 4] += y_sum_parts[pair * 4 + 2];
    y_sum_parts[0] += y_sum_parts[4];
    y_sum = y_sum_parts[0];

    // y
    if (row == 0) y[tile * 32 + column] = tw::to_bf16(y_sum);
}


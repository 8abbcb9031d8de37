// gradient[i, j] = sum_p select(cast(i64, ids[p]) == i, cast(f32, y_gradient[p, j]), 0.0)
// inputs    ids i32 [50], y_gradient bf16 [50, 64]
// schedule  [0] s.scatter(gradient, Combine::Search);
//           [1] auto [block, in_block] = s.split(i, 4, Tail::Mask, {"block", "in_block"});
//           [2] auto [turn, row] = s.split(in_block, 4, {"turn", "row"});
//           [3] auto [part, in_part] = s.split(j, 128, Tail::Mask, {"part", "in_part"});
//           [4] auto [tile, in_tile] = s.split(in_part, 128, Tail::Mask, {"tile", "in_tile"});
//           [5] auto [vector_2, in_vector] = s.split(in_tile, 128, {"vector", "in_vector"});
//           [6] auto [t, element] = s.split(in_vector, 4, {"t", "element"});
//           [7] s.order({block, part, turn, row, t, tile, t_gradient, vector_2, element});
//           [8] s.bind(block, grid.x);
//           [9] s.bind(part, grid.y);
//           [10] s.bind(row, thread);
//           [11] s.bind(t, thread);
//           [12] s.bind(vector_2, unrolled);
//           [13] s.bind(element, vector);
//           [14] s.at(gradient_span, row);
//           [15] s.set_memory(gradient_span, Memory::Registers);
//           [16] auto [round, share] = s.split(u, 32, Tail::Mask, {"round", "share"});
//           [17] s.order({share, round});
//           [18] s.bind(share, thread);
// 128 threads

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

/// The index, of which the emulator sees that 0 <= index < extent holds in the dimension of the tensor.
template <class Index, class Extent>
__device__ inline Index inside(Index index, Extent, const char*, int) { return index; }

/// The value of the lane whose number differs by these bits.
template <class T>
__device__ inline T shuffle_xor(T value, int lane_bits) { return __shfl_xor_sync(0xffffffff, value, lane_bits); }

/// The other operand if one is NaN; -0 is less than 0.
__device__ inline int min(int a, int b) { return a < b ? a : b; }

/// The other operand if one is NaN; -0 is less than 0.
__device__ inline int max(int a, int b) { return a > b ? a : b; }
}  // namespace tw

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(128, 1)
gradient_kernel(const int* __restrict__ ids, const tw::bf16* __restrict__ y_gradient, float* __restrict__ gradient) {
    const int block = blockIdx.x;
    const int thread = threadIdx.x;
    tw::griddepcontrol_wait();

    const int row = thread / 32;
    const int share = thread % 32;
    int gradient_last;
    int gradient_first;
    int gradient_span_span_1;
    int gradient_span_span_0;
    // [14] gradient_span: start
    gradient_span_span_0 = 2147483647;
    gradient_span_span_1 = -1;

    // [14] gradient_span: accumulate
    if (block * 4 + row < 9) {
        #pragma unroll
        for (int round = 0; round < 2; ++round) {
            if (round * 32 + share < 50) {
                const int gradient_span_span_0_new =
                    tw::min(gradient_span_span_0,
                            block * 4 + row == ids[round * 32 + share] ? round * 32 + share : 2147483647);
                const int gradient_span_span_1_new =
                    tw::max(gradient_span_span_1, block * 4 + row == ids[round * 32 + share] ? round * 32 + share : -1);
                gradient_span_span_0 = gradient_span_span_0_new;
                gradient_span_span_1 = gradient_span_span_1_new;
            }
        }
    }

    // [14] gradient_span: combine the threads' parts
    const int gradient_span_span_0_new = tw::min(gradient_span_span_0, tw::shuffle_xor(gradient_span_span_0, 1));
    const int gradient_span_span_1_new = tw::max(gradient_span_span_1, tw::shuffle_xor(gradient_span_span_1, 1));
    gradient_span_span_0 = gradient_span_span_0_new;
    gradient_span_span_1 = gradient_span_span_1_new;

    const int gradient_span_span_0_new_2 = tw::min(gradient_span_span_0, tw::shuffle_xor(gradient_span_span_0, 2));
    const int gradient_span_span_1_new_2 = tw::max(gradient_span_span_1, tw::shuffle_xor(gradient_span_span_1, 2));
    gradient_span_span_0 = gradient_span_span_0_new_2;
    gradient_span_span_1 = gradient_span_span_1_new_2;

    const int gradient_span_span_0_new_3 = tw::min(gradient_span_span_0, tw::shuffle_xor(gradient_span_span_0, 4));
    const int gradient_span_span_1_new_3 = tw::max(gradient_span_span_1, tw::shuffle_xor(gradient_span_span_1, 4));
    gradient_span_span_0 = gradient_span_span_0_new_3;
    gradient_span_span_1 = gradient_span_span_1_new_3;

    const int gradient_span_span_0_new_4 = tw::min(gradient_span_span_0, tw::shuffle_xor(gradient_span_span_0, 8));
    const int gradient_span_span_1_new_4 = tw::max(gradient_span_span_1, tw::shuffle_xor(gradient_span_span_1, 8));
    gradient_span_span_0 = gradient_span_span_0_new_4;
    gradient_span_span_1 = gradient_span_span_1_new_4;

    const int gradient_span_span_0_new_5 = tw::min(gradient_span_span_0, tw::shuffle_xor(gradient_span_span_0, 16));
    const int gradient_span_span_1_new_5 = tw::max(gradient_span_span_1, tw::shuffle_xor(gradient_span_span_1, 16));
    gradient_span_span_0 = gradient_span_span_0_new_5;
    gradient_span_span_1 = gradient_span_span_1_new_5;

    // [14] gradient_span
    if (block * 4 + row < 9) {
        gradient_first = gradient_span_span_0;
        gradient_last = gradient_span_span_1;
    }

    float gradient_sum[4];
    // gradient: start
    #pragma unroll
    for (int element = 0; element < 4; ++element) gradient_sum[element] = 0.0f;

    // gradient: accumulate
    if (block * 4 + row < 9 && share < 16) {
        for (long long t = 0, t_end = block * 4 + row < 9 ? (long long)gradient_last - gradient_first + 1 : 0;
             t < t_end; ++t) {
            #pragma unroll
            for (int element = 0; element < 4; ++element) {
                gradient_sum[element] += block * 4 + row == ids[tw::inside(t + gradient_first, 50, "ids", 0)] ?
                    tw::to_f32(y_gradient[(tw::inside(t + gradient_first, 50, "y_gradient", 0),
                                           t * 64 + (long long)gradient_first * 64 + share * 4 + element)]) : 0.0f;
            }
        }
    }

    // gradient
    if (block * 4 + row < 9 && share < 16) {
        tw::store<4>(&gradient[block * 256 + row * 64 + share * 4], gradient_sum);
    }
}


// gradient[i, j] = sum_p select(cast(i64, ids[p]) == i, cast(f32, y_gradient[p, j]), 0.0)
// inputs    ids i32 [50], y_gradient bf16 [50, 64]
// schedule  [0] Stage gradient_updates = s.scatter(gradient, Combine::Atomic);
//           [1] Loop all = s.fuse(i, j, "all");
//           [2] auto [block, in_block] = s.split(all, 1024, Tail::Mask, {"block", "in_block"});
//           [3] auto [step, in_step] = s.split(in_block, 1024, {"step", "in_step"});
//           [4] auto [t, element] = s.split(in_step, 4, {"t", "element"});
//           [5] s.order({block, t, step, element});
//           [6] s.bind(block, grid.x);
//           [7] s.bind(t, thread);
//           [8] s.bind(step, unrolled);
//           [9] s.bind(element, vector);
//           [10] auto [block_2, row] = s.split(p, 8, Tail::Mask, {"block", "row"});
//           [11] auto [tile, in_tile] = s.split(j_gradient_updates, 64, Tail::Mask, {"tile", "in_tile"});
//           [12] auto [element_2, t_2] = s.split(in_tile, 32, {"element", "t"});
//           [13] s.order({block_2, tile, row, t_2, element_2});
//           [14] s.bind(block_2, grid.x);
//           [15] s.bind(tile, grid.y);
//           [16] s.bind(row, thread);
//           [17] s.bind(t_2, thread);
//           [18] s.bind(element_2, unrolled);
//           [19] Stage y_gradient_registers = s.stage(gradient_updates, y_gradient, Memory::Registers, row);
//           [20] auto [element_3, t_3] = s.split(j_y_gradient_registers, 32, Tail::Mask, {"element", "t"});
//           [21] s.bind(element_3, unrolled);
//           [22] s.bind(t_3, thread);
// 256 threads

// ---- vocabulary: what the GPU has -----------------------------------------------------------------------------------
namespace tw {
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
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256, 1) gradient_kernel(float* __restrict__ gradient) {
    const int t = threadIdx.x;
    tw::griddepcontrol_wait();

    // gradient
    if (t < 144) {
        float gradient_out[4];
        #pragma unroll
        for (int element = 0; element < 4; ++element) gradient_out[element] = 0.0f;
        tw::store<4>(&gradient[t * 4], gradient_out);
    }
}

// gradient[i, j] = sum_p select(cast(i64, ids[p]) == i, cast(f32, y_gradient[p, j]), 0.0)
// inputs    ids i32 [50], y_gradient bf16 [50, 64]
// schedule  [0] Stage gradient_updates = s.scatter(gradient, Combine::Atomic);
//           [1] Loop all = s.fuse(i, j, "all");
//           [2] auto [block, in_block] = s.split(all, 1024, Tail::Mask, {"block", "in_block"});
//           [3] auto [step, in_step] = s.split(in_block, 1024, {"step", "in_step"});
//           [4] auto [t, element] = s.split(in_step, 4, {"t", "element"});
//           [5] s.order({block, t, step, element});
//           [6] s.bind(block, grid.x);
//           [7] s.bind(t, thread);
//           [8] s.bind(step, unrolled);
//           [9] s.bind(element, vector);
//           [10] auto [block_2, row] = s.split(p, 8, Tail::Mask, {"block", "row"});
//           [11] auto [tile, in_tile] = s.split(j_gradient_updates, 64, Tail::Mask, {"tile", "in_tile"});
//           [12] auto [element_2, t_2] = s.split(in_tile, 32, {"element", "t"});
//           [13] s.order({block_2, tile, row, t_2, element_2});
//           [14] s.bind(block_2, grid.x);
//           [15] s.bind(tile, grid.y);
//           [16] s.bind(row, thread);
//           [17] s.bind(t_2, thread);
//           [18] s.bind(element_2, unrolled);
//           [19] Stage y_gradient_registers = s.stage(gradient_updates, y_gradient, Memory::Registers, row);
//           [20] auto [element_3, t_3] = s.split(j_y_gradient_registers, 32, Tail::Mask, {"element", "t"});
//           [21] s.bind(element_3, unrolled);
//           [22] s.bind(t_3, thread);
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

template <class T>
__device__ inline void atomic_add(T* memory, T value) { atomicAdd(memory, value); }
__device__ inline void atomic_add(long long* memory, long long value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(memory), (unsigned long long)value);
}
}  // namespace tw

// ---- vocabulary: what is made of it ---------------------------------------------------------------------------------
namespace tw {
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256, 1)
gradient_updates_kernel(const int* __restrict__ ids,
                        const tw::bf16* __restrict__ y_gradient,
                        float* __restrict__ gradient) {
    const int block = blockIdx.x;
    const int thread = threadIdx.x;
    tw::griddepcontrol_wait();

    const int row = thread / 32;
    const int t = thread % 32;
    tw::bf16 y_gradient_registers[2];
    // [19] y_gradient_registers: copy
    if (block * 8 + row < 50) {
        const int y_gradient_offset = block * 512 + row * 64 + t;
        #pragma unroll
        for (int element = 0; element < 2; ++element) {
            y_gradient_registers[element] = y_gradient[y_gradient_offset + element * 32];
        }
    }

    // [0] gradient_updates
    if (block * 8 + row < 50 && 0 <= ids[block * 8 + row] && ids[block * 8 + row] < 9) {
        const int ids_offset = block * 8 + row;
        #pragma unroll
        for (int element = 0; element < 2; ++element) {
            tw::atomic_add(&gradient[t + (long long)ids[ids_offset] * 64 + element * 32],
                           tw::to_f32(y_gradient_registers[element]));
        }
    }
}


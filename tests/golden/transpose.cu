// b[j, i] = a[i, j]        i < 1024, j < 2048
// 256 threads, 4224 bytes of shared memory

// ---- vocabulary: what the GPU has -----------------------------------------------------------------------------------
namespace tw {
/// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return *reinterpret_cast<T*>(dynamic_shared);
}
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

struct Shared {
    alignas(16) float tile[32][33];
};

extern "C" __global__ void __launch_bounds__(256, 1)
transpose_kernel(const float* __restrict__ a, float* __restrict__ b) {
    Shared& shared = tw::shared_memory<Shared>();
    const int block_y = blockIdx.y;
    const int block_x = blockIdx.x;
    const int thread = threadIdx.x;
    const int warp = thread / 32;
    const int lane = thread % 32;
    const int a_offset = block_y * 65536 + warp * 2048 + block_x * 32 + lane;
    // [2] tile: rows of a
    #pragma unroll
    for (int v = 0; v < 4; ++v) shared.tile[warp + v * 8][lane] = a[a_offset + v * 16384];
    __syncthreads();

    const int b_offset = block_x * 32768 + warp * 1024 + block_y * 32 + lane;
    // [3] b: columns of the tile
    #pragma unroll
    for (int w = 0; w < 4; ++w) b[b_offset + w * 8192] = shared.tile[lane][warp + w * 8];
}

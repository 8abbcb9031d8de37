// c[i, j] = alpha * sum_k a[i, k] * b[k, j]        512 x 512 x 256
// schedule: tile 64 x 64 x 16, 4 x 4 a thread
// 256 threads, 9216 bytes of shared memory

// ---- vocabulary: what the GPU has -----------------------------------------------------------------------------------
namespace tw {
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

/// N neighbouring elements from memory to memory.
template <int N, class T>
__device__ inline void copy(T* to, const T* from) {
    *reinterpret_cast<Vector<N, T>*>(to) = *reinterpret_cast<const Vector<N, T>*>(from);
}

/// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return *reinterpret_cast<T*>(dynamic_shared);
}

__device__ inline float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
}  // namespace tw

// ---- kernel ---------------------------------------------------------------------------------------------------------

struct Shared {
    alignas(16) float a_tile[64][20];
    alignas(16) float b_tile[16][64];
};

extern "C" __global__ void __launch_bounds__(256, 1)
sgemm_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, float alpha) {
    Shared& shared = tw::shared_memory<Shared>();
    const int block_y = blockIdx.y;
    const int block_x = blockIdx.x;
    const int thread = threadIdx.x;
    const int ti = thread / 16;
    const int tj = thread % 16;
    float sum[4][4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
    }

    const int a_tile_row = thread / 4;
    const int a_tile_vector = thread % 4;
    const int a_offset = block_y * 16384 + a_tile_row * 256 + a_tile_vector * 4;
    const int b_offset = ti * 512 + block_x * 64 + tj * 4;
    for (int ko = 0; ko < 16; ++ko) {
        // [5] a in shared
        tw::copy<4>(&shared.a_tile[a_tile_row][a_tile_vector * 4], &a[a_offset + ko * 16]);
        // [6] b in shared
        tw::copy<4>(&shared.b_tile[ti][tj * 4], &b[b_offset + ko * 8192]);
        __syncthreads();
        // accumulate
        for (int ki = 0; ki < 16; ++ki) {
            float a_column[4];
            #pragma unroll
            for (int i = 0; i < 4; ++i) a_column[i] = shared.a_tile[ti * 4 + i][ki];
            float b_row[4];
            tw::load<4>(b_row, &shared.b_tile[ki][tj * 4]);
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                #pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] = tw::fma(a_column[i], b_row[j], sum[i][j]);
            }
        }
        __syncthreads();
    }

    const int c_offset = block_y * 32768 + ti * 2048 + block_x * 64 + tj * 4;
    // c
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        float c_row[4];
        #pragma unroll
        for (int j = 0; j < 4; ++j) c_row[j] = alpha * sum[i][j];
        tw::store<4>(&c[c_offset + i * 512], c_row);
    }
}

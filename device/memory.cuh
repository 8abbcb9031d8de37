//: vector
/// Elements that move together.
template <int N, class T>
struct alignas(N * sizeof(T)) Vector { T elements[N]; };

//: load needs vector
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

//: store needs vector
/// N neighbouring elements by one access.
template <int N, class T>
__device__ inline void store(T* memory, const T* registers) {
    Vector<N, T> vector;
#pragma unroll
    for (int i = 0; i < N; ++i) vector.elements[i] = registers[i];
    *reinterpret_cast<Vector<N, T>*>(memory) = vector;
}

//: copy needs vector
/// N neighbouring elements from memory to memory.
template <int N, class T>
__device__ inline void copy(T* to, const T* from) {
    *reinterpret_cast<Vector<N, T>*>(to) = *reinterpret_cast<const Vector<N, T>*>(from);
}

//: copy_where needs vector
/// N neighbouring elements, 16 bytes, from memory to memory that the kernel does not read, read in any case and stored
/// where the condition holds: neither a branch nor an order of memory stands between several.
template <int N, class T>
__device__ inline void copy_where(bool condition, T* to, const T* from) {
    static_assert(N * sizeof(T) == 16);
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    asm volatile("{.reg .pred stored; setp.ne.s32 stored, %0, 0; @stored st.global.v4.b32 [%1], {%2, %3, %4, %5};}"
                 :
                 : "r"(static_cast<int>(condition)), "l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w));
}

//: inside
/// The index, of which the emulator sees that 0 <= index < extent holds in the dimension of the tensor.
template <class Index, class Extent>
__device__ inline Index inside(Index index, Extent, const char*, int) { return index; }

//: begin_array
/// The array of so many bytes begins, where others were in shared memory: for the emulator, nobody has written it yet.
__device__ inline void begin_array(const void*, int) {}

//: shared_memory
/// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return *reinterpret_cast<T*>(dynamic_shared);
}

//: barrier_sync
/// Waits until `threads` threads, counted in whole warps, have come to barrier `id`.
__device__ inline void barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

//: barrier_arrive
/// Tells the threads that wait at barrier `id`, and goes on.
__device__ inline void barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

//: swizzle common
/// Where column `column` of row `row` stands in rows of `line` bytes, as TMA and wgmma put them: the 16-byte pieces of
/// eight rows change places so that a piece of each is in other banks.
template <int line, int bytes>
__device__ inline int swizzle(int row, int column) {
    return column ^ row / (128 / line) % (line / 16) * (16 / bytes);
}

// What an emulated kernel and the emulator know of each other. Part of every kernel's translation unit: includes
// nothing.
#pragma once

namespace tw::emulated {

struct Index3 {
    unsigned x, y, z;
};

/// The running thread, as its kernel sees it.
struct ThreadState {
    Index3 thread, block, block_size, grid_size;
    int lane;                      // in its warp
    unsigned char* shared_memory;  // the block's
    unsigned cluster_rank;
};

/// What a parameter of a kernel leads to: it is a value itself, a tensor map, or points to elements of a type.
enum class Pointee { Value, Map, Other, F32, F64, F16, Bf16 };

/// The type of the elements of matrices that tensor cores multiply.
enum class MatrixType { f16, bf16, tf32, e4m3, e5m2, s8 };

/// How far the pixels of an im2col load lie from their base pixels.
struct Offsets {
    int w, h, d;
};

/// A bulk copy of a box between global and shared memory, by the thread that starts it.
struct TmaCall {
    enum Kind { Load, LoadIm2col, Store, ReduceAdd } kind;
    int rank;
    void* shared;
    const void* map;
    int coordinates[5];
    void* barrier;    // of a load
    unsigned ranks;   // of the blocks of the cluster that get it; 0: this one
    Offsets offsets;  // of an im2col load
};

/// What a thread passes to a product of its warpgroup.
struct WgmmaCall {
    int n, k;
    MatrixType a_type, b_type;
    void* d;
    const void* a_registers;  // or
    unsigned long long a, b;  // descriptors
    bool accumulate, transpose_a, transpose_b, negated;
};

/// What registers hold until something is written there. A NaN with these bits comes of such a register.
struct Unwritten {
    static constexpr unsigned FloatBits = 0x7fe5a5a5;
    unsigned float_bits = FloatBits, integer_bits = 0xfefefefe;
};

/// What the emulator does for a kernel. `caller` is the return address into the kernel: it stands for the printed line.
/// None of them returns if it finds a fault, or before the thread may go on.
struct Hooks {
    void (*read[5])(const void* memory, const void* caller);  // 1, 2, 4, 8, 16 bytes
    void (*write[5])(const void* memory, const void* caller);
    void (*range)(const void* memory, unsigned long bytes, bool writes, const void* caller);  // element by element
    void (*atomic)(const void* memory, int bytes, const void* caller);
    void (*outside)(long long index, long long extent, const char* tensor, int dimension, const void* caller);
    void (*begin_array)(const void* array, int bytes, const void* caller);
    void (*sync_threads)(const void* caller);
    void (*sync_warp)(const void* caller);
    void (*sync_named)(int id, int threads, const void* caller);
    void (*arrive_named)(int id, int threads, const void* caller);
    unsigned long (*shuffle)(unsigned long value, int source_lane, const void* caller);
    void (*cp_async)(void* to, const void* from, int bytes, bool there, const void* caller);
    void (*cp_async_commit)();
    void (*cp_async_wait)(int pending, const void* caller);
    void (*mbarrier_init)(void* barrier, int arrivals, const void* caller);
    void (*fence_mbarrier_init)();
    void (*mbarrier_arrive)(void* barrier, int rank, const void* caller);  // -1: at the block's own
    void (*mbarrier_expect_tx)(void* barrier, unsigned bytes, const void* caller);
    void (*mbarrier_wait)(void* barrier, unsigned phase, const void* caller);
    void (*tma)(const TmaCall& call, const void* caller);
    void (*tma_store_commit)();
    void (*tma_store_wait)(int pending, bool only_read, const void* caller);
    void (*fence_proxy_async)();
    void (*cluster_arrive)(const void* caller);
    void (*cluster_wait)(const void* caller);
    void* (*peer_shared)(void* own, unsigned rank, const void* caller);
    void (*wgmma)(const WgmmaCall& call, const void* caller);
    void (*wgmma_fence)(const void* caller);
    void (*wgmma_commit)(const void* caller);
    void (*wgmma_wait)(int pending, const void* caller);
    void (*set_registers)(int count, bool grows, const void* caller);
    bool (*elect_one)(const void* caller);
    void (*ldmatrix)(void* registers, const void* row, int count, bool transposed, const void* caller);
    void (*stmatrix)(void* row, const void* registers, int count, bool transposed, const void* caller);
    void (*griddepcontrol_wait)();
    void (*mma)(void* d, const void* a, const void* b, int k, MatrixType a_type, MatrixType b_type, bool negated,
                const void* caller);
};

}  // namespace tw::emulated

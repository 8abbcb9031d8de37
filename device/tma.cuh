//: TensorMap
/// Describes a tensor in global memory and the boxes of it that are copied; encoded by the host.
struct alignas(64) TensorMap {
    char opaque[128];
};

//: prefetch_tensor_map needs TensorMap
/// Has the map brought near, so that the first copy by it waits less.
__device__ inline void prefetch_tensor_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

//: tma_load_1d needs TensorMap Barrier shared_address
/// Starts to copy a box of the tensor, whose first element has these coordinates, the innermost first, to shared
/// memory. What lies outside comes as zeros. Its bytes count at the barrier when they have come.
template <int rank = 1>
__device__ inline void tma_load(void* to, const TensorMap& map, int x, Barrier& barrier) {
    static_assert(rank == 1, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(shared_address(&barrier))
        : "memory");
}

//: tma_load_2d needs TensorMap Barrier shared_address
template <int rank = 2>
__device__ inline void tma_load(void* to, const TensorMap& map, int x, int y, Barrier& barrier) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier))
        : "memory");
}

//: tma_load_3d needs TensorMap Barrier shared_address
template <int rank = 3>
__device__ inline void tma_load(void* to, const TensorMap& map, int x, int y, int z, Barrier& barrier) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier))
        : "memory");
}

//: tma_load_4d needs TensorMap Barrier shared_address
template <int rank = 4>
__device__ inline void tma_load(void* to, const TensorMap& map, int x, int y, int z, int u, Barrier& barrier) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
        "%5}], [%6];"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(shared_address(&barrier))
        : "memory");
}

//: tma_load_5d needs TensorMap Barrier shared_address
template <int rank = 5>
__device__ inline void tma_load(void* to, const TensorMap& map, int x, int y, int z, int u, int v, Barrier& barrier) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
        "%6}], [%7];"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(shared_address(&barrier))
        : "memory");
}

//: tma_load common needs tma_load_1d tma_load_2d tma_load_3d tma_load_4d tma_load_5d

//: tma_load_multicast_1d needs TensorMap Barrier shared_address
/// The same copy, to the same place of all blocks of the cluster in this set of ranks, counted from `first`; each
/// counts them at its own barrier.
template <int rank = 1>
__device__ inline void tma_load_multicast(void* to, const TensorMap& map, int x, Barrier& barrier,
                                          unsigned ranks, unsigned first = 0) {
    static_assert(rank == 1, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2}], [%3], %4;"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(shared_address(&barrier)),
          "h"((unsigned short)(ranks << first))
        : "memory");
}

//: tma_load_multicast_2d needs TensorMap Barrier shared_address
template <int rank = 2>
__device__ inline void tma_load_multicast(void* to, const TensorMap& map, int x, int y, Barrier& barrier,
                                          unsigned ranks, unsigned first = 0) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3}], [%4], %5;"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier)),
          "h"((unsigned short)(ranks << first))
        : "memory");
}

//: tma_load_multicast_3d needs TensorMap Barrier shared_address
template <int rank = 3>
__device__ inline void tma_load_multicast(void* to, const TensorMap& map, int x, int y, int z, Barrier& barrier,
                                          unsigned ranks, unsigned first = 0) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4}], [%5], %6;"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier)),
          "h"((unsigned short)(ranks << first))
        : "memory");
}

//: tma_load_multicast_4d needs TensorMap Barrier shared_address
template <int rank = 4>
__device__ inline void tma_load_multicast(void* to, const TensorMap& map, int x, int y, int z, int u, Barrier& barrier,
                                          unsigned ranks, unsigned first = 0) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4, %5}], [%6], %7;"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(shared_address(&barrier)),
          "h"((unsigned short)(ranks << first))
        : "memory");
}

//: tma_load_multicast_5d needs TensorMap Barrier shared_address
template <int rank = 5>
__device__ inline void tma_load_multicast(void* to, const TensorMap& map, int x, int y, int z, int u, int v,
                                          Barrier& barrier, unsigned ranks, unsigned first = 0) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4, %5, %6}], [%7], %8;"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(shared_address(&barrier)),
          "h"((unsigned short)(ranks << first))
        : "memory");
}

//: tma_load_multicast common needs tma_load_multicast_1d tma_load_multicast_2d tma_load_multicast_3d tma_load_multicast_4d tma_load_multicast_5d

//: tma_load_im2col_3d needs TensorMap Barrier shared_address
/// Starts to copy a column of pixels of an im2col map to shared memory. The first base pixel has these coordinates;
/// the others follow in its bounding box by the map's strides, in the order w, h, d, n. Each pixel is read so far from
/// its base pixel as the offsets say, which a tap of a filter has. What lies outside of the tensor comes as zeros.
template <int rank = 3>
__device__ inline void tma_load_im2col(void* to, const TensorMap& map, int c, int w, int n, int offset_w,
                                       Barrier& barrier) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5], {%6};"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(c), "r"(w), "r"(n), "r"(shared_address(&barrier)),
          "h"((unsigned short)offset_w)
        : "memory");
}

//: tma_load_im2col_4d needs TensorMap Barrier shared_address
template <int rank = 4>
__device__ inline void tma_load_im2col(void* to, const TensorMap& map, int c, int w, int h, int n, int offset_w,
                                       int offset_h, Barrier& barrier) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(shared_address(&barrier)),
          "h"((unsigned short)offset_w), "h"((unsigned short)offset_h)
        : "memory");
}

//: tma_load_im2col_5d needs TensorMap Barrier shared_address
template <int rank = 5>
__device__ inline void tma_load_im2col(void* to, const TensorMap& map, int c, int w, int h, int d, int n, int offset_w,
                                       int offset_h, int offset_d, Barrier& barrier) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "r"(shared_address(&barrier)),
          "h"((unsigned short)offset_w), "h"((unsigned short)offset_h), "h"((unsigned short)offset_d)
        : "memory");
}

//: tma_load_im2col common needs tma_load_im2col_3d tma_load_im2col_4d tma_load_im2col_5d

//: tma_load_im2col_multicast_3d needs TensorMap Barrier shared_address
/// The same copy, to the same place of all blocks of the cluster in this set of ranks, counted from `first`; each
/// counts them at its own barrier.
template <int rank = 3>
__device__ inline void tma_load_im2col_multicast(void* to, const TensorMap& map, int c, int w, int n, int offset_w,
                                                 Barrier& barrier, unsigned ranks, unsigned first = 0) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], {%6}, %7;"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(c), "r"(w), "r"(n), "r"(shared_address(&barrier)),
          "h"((unsigned short)offset_w), "h"((unsigned short)(ranks << first))
        : "memory");
}

//: tma_load_im2col_multicast_4d needs TensorMap Barrier shared_address
template <int rank = 4>
__device__ inline void tma_load_im2col_multicast(void* to, const TensorMap& map, int c, int w, int h, int n,
                                                 int offset_w, int offset_h, Barrier& barrier, unsigned ranks,
                                                 unsigned first = 0) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9;"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(shared_address(&barrier)),
          "h"((unsigned short)offset_w), "h"((unsigned short)offset_h), "h"((unsigned short)(ranks << first))
        : "memory");
}

//: tma_load_im2col_multicast_5d needs TensorMap Barrier shared_address
template <int rank = 5>
__device__ inline void tma_load_im2col_multicast(void* to, const TensorMap& map, int c, int w, int h, int d, int n,
                                                 int offset_w, int offset_h, int offset_d, Barrier& barrier,
                                                 unsigned ranks, unsigned first = 0) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10}, %11;"
        :
        : "r"(shared_address(to)), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "r"(shared_address(&barrier)),
          "h"((unsigned short)offset_w), "h"((unsigned short)offset_h), "h"((unsigned short)offset_d),
          "h"((unsigned short)(ranks << first))
        : "memory");
}

//: tma_load_im2col_multicast common needs tma_load_im2col_multicast_3d tma_load_im2col_multicast_4d tma_load_im2col_multicast_5d

//: tma_store_1d needs TensorMap shared_address
/// Starts to copy from shared memory to a box of the tensor. What lies outside is left out, in whole units of 16 bytes.
template <int rank = 1>
__device__ inline void tma_store(const TensorMap& map, int x, const void* from) {
    static_assert(rank == 1, "as many coordinates as dimensions");
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%1}], [%2];"
                 :
                 : "l"(&map), "r"(x), "r"(shared_address(from))
                 : "memory");
}

//: tma_store_2d needs TensorMap shared_address
template <int rank = 2>
__device__ inline void tma_store(const TensorMap& map, int x, int y, const void* from) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 :
                 : "l"(&map), "r"(x), "r"(y), "r"(shared_address(from))
                 : "memory");
}

//: tma_store_3d needs TensorMap shared_address
template <int rank = 3>
__device__ inline void tma_store(const TensorMap& map, int x, int y, int z, const void* from) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
                 :
                 : "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(from))
                 : "memory");
}

//: tma_store_4d needs TensorMap shared_address
template <int rank = 4>
__device__ inline void tma_store(const TensorMap& map, int x, int y, int z, int u, const void* from) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
                 :
                 : "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(shared_address(from))
                 : "memory");
}

//: tma_store_5d needs TensorMap shared_address
template <int rank = 5>
__device__ inline void tma_store(const TensorMap& map, int x, int y, int z, int u, int v, const void* from) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];"
                 :
                 : "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(shared_address(from))
                 : "memory");
}

//: tma_store common needs tma_store_1d tma_store_2d tma_store_3d tma_store_4d tma_store_5d

//: tma_reduce_add_1d needs TensorMap shared_address
/// Adds the box to the tensor, element by element.
template <int rank = 1>
__device__ inline void tma_reduce_add(const TensorMap& map, int x, const void* from) {
    static_assert(rank == 1, "as many coordinates as dimensions");
    asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%0, {%1}], [%2];"
                 :
                 : "l"(&map), "r"(x), "r"(shared_address(from))
                 : "memory");
}

//: tma_reduce_add_2d needs TensorMap shared_address
template <int rank = 2>
__device__ inline void tma_reduce_add(const TensorMap& map, int x, int y, const void* from) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];"
                 :
                 : "l"(&map), "r"(x), "r"(y), "r"(shared_address(from))
                 : "memory");
}

//: tma_reduce_add_3d needs TensorMap shared_address
template <int rank = 3>
__device__ inline void tma_reduce_add(const TensorMap& map, int x, int y, int z, const void* from) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
                 :
                 : "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(from))
                 : "memory");
}

//: tma_reduce_add_4d needs TensorMap shared_address
template <int rank = 4>
__device__ inline void tma_reduce_add(const TensorMap& map, int x, int y, int z, int u, const void* from) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
                 :
                 : "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(shared_address(from))
                 : "memory");
}

//: tma_reduce_add_5d needs TensorMap shared_address
template <int rank = 5>
__device__ inline void tma_reduce_add(const TensorMap& map, int x, int y, int z, int u, int v, const void* from) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    asm volatile(
        "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];"
        :
        : "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(shared_address(from))
        : "memory");
}

//: tma_reduce_add common needs tma_reduce_add_1d tma_reduce_add_2d tma_reduce_add_3d tma_reduce_add_4d tma_reduce_add_5d

//: tma_store_commit
/// The thread's tma_store and tma_reduce_add since the last commit form a group.
__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

//: tma_store_wait_read
/// Until all but the last `pending` groups have read their shared memory, which may then be overwritten.
template <int pending>
__device__ inline void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(pending) : "memory");
}

//: tma_store_wait
/// Until all but the last `pending` groups have ended.
template <int pending>
__device__ inline void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" : : "n"(pending) : "memory");
}

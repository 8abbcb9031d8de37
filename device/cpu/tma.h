// Twins of ../barrier.cuh, ../tma.cuh and ../cluster.cuh.
namespace tw {

struct Barrier {
    unsigned long long state;
};
struct alignas(64) TensorMap {
    char opaque[128];
};

namespace emulated {

extern "C" TW_HOOK void tw_barrier_init(void* barrier, int arrivals) {
    tw_hooks.mbarrier_init(barrier, arrivals, TW_CALLER);
}
extern "C" TW_HOOK void tw_barrier_arrive(void* barrier, int rank) {
    tw_hooks.mbarrier_arrive(barrier, rank, TW_CALLER);
}
extern "C" TW_HOOK void tw_barrier_expect(void* barrier, unsigned bytes) {
    tw_hooks.mbarrier_expect_tx(barrier, bytes, TW_CALLER);
}
extern "C" TW_HOOK void tw_barrier_wait(void* barrier, unsigned phase) {
    tw_hooks.mbarrier_wait(barrier, phase, TW_CALLER);
}
extern "C" TW_HOOK void tw_fence_barrier_init() { tw_hooks.fence_mbarrier_init(); }
extern "C" TW_HOOK void tw_fence_async_proxy() { tw_hooks.fence_proxy_async(); }
extern "C" TW_HOOK void tw_cluster_arrive() { tw_hooks.cluster_arrive(TW_CALLER); }
extern "C" TW_HOOK void tw_cluster_wait() { tw_hooks.cluster_wait(TW_CALLER); }
extern "C" TW_HOOK void* tw_peer_shared(void* own, unsigned rank) { return tw_hooks.peer_shared(own, rank, TW_CALLER); }
extern "C" TW_HOOK void tw_tma(int kind, int rank, void* shared, const void* map, Index3 first, int u, int v,
                               void* barrier, unsigned ranks) {
    const int x = (int)first.x, y = (int)first.y, z = (int)first.z;
    tw_hooks.tma({(TmaCall::Kind)kind, rank, shared, map, {x, y, z, u, v}, barrier, ranks, {}}, TW_CALLER);
}
extern "C" TW_HOOK void tw_tma_im2col(int rank, void* shared, const void* map, Index3 first, int u, int v,
                                      void* barrier, unsigned ranks, Offsets offsets) {
    const int x = (int)first.x, y = (int)first.y, z = (int)first.z;
    tw_hooks.tma({TmaCall::LoadIm2col, rank, shared, map, {x, y, z, u, v}, barrier, ranks, offsets}, TW_CALLER);
}
extern "C" TW_HOOK void tw_commit_stores() { tw_hooks.tma_store_commit(); }
extern "C" TW_HOOK void tw_wait_stores(int pending, bool only_read) {
    tw_hooks.tma_store_wait(pending, only_read, TW_CALLER);
}
TW_STATE unsigned tw_cluster_rank() { return tw_current->cluster_rank; }

TW_INLINE Index3 index3(int x, int y = 0, int z = 0) { return {(unsigned)x, (unsigned)y, (unsigned)z}; }

}  // namespace emulated

TW_INLINE void prefetch_tensor_map(const TensorMap&) {}
TW_INLINE void mbarrier_init(Barrier& barrier, int arrivals) { emulated::tw_barrier_init(&barrier, arrivals); }
TW_INLINE void fence_mbarrier_init() { emulated::tw_fence_barrier_init(); }
TW_INLINE void mbarrier_arrive(Barrier& barrier) { emulated::tw_barrier_arrive(&barrier, -1); }
TW_INLINE void mbarrier_arrive_at(Barrier& barrier, unsigned rank) { emulated::tw_barrier_arrive(&barrier, (int)rank); }
TW_INLINE void mbarrier_expect_tx(Barrier& barrier, unsigned bytes) { emulated::tw_barrier_expect(&barrier, bytes); }
TW_INLINE void mbarrier_wait(Barrier& barrier, unsigned phase) { emulated::tw_barrier_wait(&barrier, phase); }
TW_INLINE void fence_proxy_async() { emulated::tw_fence_async_proxy(); }

TW_INLINE unsigned cluster_rank() { return emulated::tw_cluster_rank(); }
TW_INLINE void cluster_arrive() { emulated::tw_cluster_arrive(); }
TW_INLINE void cluster_wait() { emulated::tw_cluster_wait(); }
template <class T>
TW_INLINE T* peer_shared(T* own, unsigned rank) {
    return static_cast<T*>(emulated::tw_peer_shared((void*)own, rank));
}

template <int rank = 1>
TW_INLINE void tma_load(void* to, const TensorMap& map, int x, Barrier& barrier) {
    static_assert(rank == 1, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 1, to, &map, emulated::index3(x), 0, 0, &barrier, 0);
}
template <int rank = 2>
TW_INLINE void tma_load(void* to, const TensorMap& map, int x, int y, Barrier& barrier) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 2, to, &map, emulated::index3(x, y), 0, 0, &barrier, 0);
}
template <int rank = 3>
TW_INLINE void tma_load(void* to, const TensorMap& map, int x, int y, int z, Barrier& barrier) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 3, to, &map, emulated::index3(x, y, z), 0, 0, &barrier, 0);
}
template <int rank = 4>
TW_INLINE void tma_load(void* to, const TensorMap& map, int x, int y, int z, int u, Barrier& barrier) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 4, to, &map, emulated::index3(x, y, z), u, 0, &barrier, 0);
}
template <int rank = 5>
TW_INLINE void tma_load(void* to, const TensorMap& map, int x, int y, int z, int u, int v, Barrier& barrier) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 5, to, &map, emulated::index3(x, y, z), u, v, &barrier, 0);
}
template <int rank = 1>
TW_INLINE void tma_load_multicast(void* to, const TensorMap& map, int x, Barrier& barrier, unsigned ranks,
                                  unsigned first = 0) {
    static_assert(rank == 1, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 1, to, &map, emulated::index3(x), 0, 0, &barrier,
                     (unsigned short)(ranks << first));
}
template <int rank = 2>
TW_INLINE void tma_load_multicast(void* to, const TensorMap& map, int x, int y, Barrier& barrier, unsigned ranks,
                                  unsigned first = 0) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 2, to, &map, emulated::index3(x, y), 0, 0, &barrier,
                     (unsigned short)(ranks << first));
}
template <int rank = 3>
TW_INLINE void tma_load_multicast(void* to, const TensorMap& map, int x, int y, int z, Barrier& barrier, unsigned ranks,
                                  unsigned first = 0) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 3, to, &map, emulated::index3(x, y, z), 0, 0, &barrier,
                     (unsigned short)(ranks << first));
}
template <int rank = 4>
TW_INLINE void tma_load_multicast(void* to, const TensorMap& map, int x, int y, int z, int u, Barrier& barrier,
                                  unsigned ranks, unsigned first = 0) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 4, to, &map, emulated::index3(x, y, z), u, 0, &barrier,
                     (unsigned short)(ranks << first));
}
template <int rank = 5>
TW_INLINE void tma_load_multicast(void* to, const TensorMap& map, int x, int y, int z, int u, int v, Barrier& barrier,
                                  unsigned ranks, unsigned first = 0) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Load, 5, to, &map, emulated::index3(x, y, z), u, v, &barrier,
                     (unsigned short)(ranks << first));
}
template <int rank = 3>
TW_INLINE void tma_load_im2col(void* to, const TensorMap& map, int c, int w, int n, int offset_w, Barrier& barrier) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    emulated::tw_tma_im2col(3, to, &map, emulated::index3(c, w, n), 0, 0, &barrier, 0, {offset_w, 0, 0});
}
template <int rank = 4>
TW_INLINE void tma_load_im2col(void* to, const TensorMap& map, int c, int w, int h, int n, int offset_w, int offset_h,
                               Barrier& barrier) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    emulated::tw_tma_im2col(4, to, &map, emulated::index3(c, w, h), n, 0, &barrier, 0, {offset_w, offset_h, 0});
}
template <int rank = 5>
TW_INLINE void tma_load_im2col(void* to, const TensorMap& map, int c, int w, int h, int d, int n, int offset_w,
                               int offset_h, int offset_d, Barrier& barrier) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    emulated::tw_tma_im2col(5, to, &map, emulated::index3(c, w, h), d, n, &barrier, 0, {offset_w, offset_h, offset_d});
}
template <int rank = 3>
TW_INLINE void tma_load_im2col_multicast(void* to, const TensorMap& map, int c, int w, int n, int offset_w,
                                         Barrier& barrier, unsigned ranks, unsigned first = 0) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    emulated::tw_tma_im2col(3, to, &map, emulated::index3(c, w, n), 0, 0, &barrier, (unsigned short)(ranks << first),
                            {offset_w, 0, 0});
}
template <int rank = 4>
TW_INLINE void tma_load_im2col_multicast(void* to, const TensorMap& map, int c, int w, int h, int n, int offset_w,
                                         int offset_h, Barrier& barrier, unsigned ranks, unsigned first = 0) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    emulated::tw_tma_im2col(4, to, &map, emulated::index3(c, w, h), n, 0, &barrier, (unsigned short)(ranks << first),
                            {offset_w, offset_h, 0});
}
template <int rank = 5>
TW_INLINE void tma_load_im2col_multicast(void* to, const TensorMap& map, int c, int w, int h, int d, int n,
                                         int offset_w, int offset_h, int offset_d, Barrier& barrier, unsigned ranks,
                                         unsigned first = 0) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    emulated::tw_tma_im2col(5, to, &map, emulated::index3(c, w, h), d, n, &barrier, (unsigned short)(ranks << first),
                            {offset_w, offset_h, offset_d});
}
template <int rank = 1>
TW_INLINE void tma_store(const TensorMap& map, int x, const void* from) {
    static_assert(rank == 1, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Store, 1, (void*)from, &map, emulated::index3(x), 0, 0, nullptr, 0);
}
template <int rank = 2>
TW_INLINE void tma_store(const TensorMap& map, int x, int y, const void* from) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Store, 2, (void*)from, &map, emulated::index3(x, y), 0, 0, nullptr, 0);
}
template <int rank = 3>
TW_INLINE void tma_store(const TensorMap& map, int x, int y, int z, const void* from) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Store, 3, (void*)from, &map, emulated::index3(x, y, z), 0, 0, nullptr, 0);
}
template <int rank = 4>
TW_INLINE void tma_store(const TensorMap& map, int x, int y, int z, int u, const void* from) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Store, 4, (void*)from, &map, emulated::index3(x, y, z), u, 0, nullptr, 0);
}
template <int rank = 5>
TW_INLINE void tma_store(const TensorMap& map, int x, int y, int z, int u, int v, const void* from) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::Store, 5, (void*)from, &map, emulated::index3(x, y, z), u, v, nullptr, 0);
}
template <int rank = 1>
TW_INLINE void tma_reduce_add(const TensorMap& map, int x, const void* from) {
    static_assert(rank == 1, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::ReduceAdd, 1, (void*)from, &map, emulated::index3(x), 0, 0, nullptr, 0);
}
template <int rank = 2>
TW_INLINE void tma_reduce_add(const TensorMap& map, int x, int y, const void* from) {
    static_assert(rank == 2, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::ReduceAdd, 2, (void*)from, &map, emulated::index3(x, y), 0, 0, nullptr, 0);
}
template <int rank = 3>
TW_INLINE void tma_reduce_add(const TensorMap& map, int x, int y, int z, const void* from) {
    static_assert(rank == 3, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::ReduceAdd, 3, (void*)from, &map, emulated::index3(x, y, z), 0, 0, nullptr, 0);
}
template <int rank = 4>
TW_INLINE void tma_reduce_add(const TensorMap& map, int x, int y, int z, int u, const void* from) {
    static_assert(rank == 4, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::ReduceAdd, 4, (void*)from, &map, emulated::index3(x, y, z), u, 0, nullptr, 0);
}
template <int rank = 5>
TW_INLINE void tma_reduce_add(const TensorMap& map, int x, int y, int z, int u, int v, const void* from) {
    static_assert(rank == 5, "as many coordinates as dimensions");
    emulated::tw_tma(emulated::TmaCall::ReduceAdd, 5, (void*)from, &map, emulated::index3(x, y, z), u, v, nullptr, 0);
}

TW_INLINE void tma_store_commit() { emulated::tw_commit_stores(); }
template <int pending>
TW_INLINE void tma_store_wait_read() {
    emulated::tw_wait_stores(pending, true);
}
template <int pending>
TW_INLINE void tma_store_wait() {
    emulated::tw_wait_stores(pending, false);
}

}  // namespace tw

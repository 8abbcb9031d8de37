//: cluster_rank
/// The rank of this block in its cluster.
__device__ inline unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

//: cluster_arrive
/// Half of a barrier of all threads of the cluster: what this thread has done is seen behind the others' cluster_wait.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

//: cluster_wait
/// Until all have arrived.
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

//: peer_shared
/// The same place in the shared memory of another block of the cluster.
template <class T>
__device__ inline T* peer_shared(T* own, unsigned rank) {
    T* there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
    return there;
}

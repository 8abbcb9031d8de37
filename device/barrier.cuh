//: Barrier
/// In shared memory: counts, phase by phase, arrivals and bytes of copies.
struct Barrier {
    unsigned long long state;
};

//: mbarrier_init needs Barrier shared_address
/// By one thread, before all others know of it; each phase takes so many arrivals.
__device__ inline void mbarrier_init(Barrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

//: fence_mbarrier_init
/// Copies and other blocks of the cluster find the barriers that this thread has made, once a barrier lies between.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

//: mbarrier_arrive needs Barrier shared_address
/// What this thread has done is seen by those who wait for the phase.
__device__ inline void mbarrier_arrive(Barrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(shared_address(&barrier)) : "memory");
}

//: mbarrier_arrive_at needs Barrier shared_address
/// At the barrier in the same place of another block of the cluster. Relaxed: says that this thread's reads are over,
/// shows nothing that it has written.
__device__ inline void mbarrier_arrive_at(Barrier& barrier, unsigned rank) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        :
        : "r"(shared_address(&barrier)), "r"(rank)
        : "memory");
}

//: mbarrier_expect_tx needs Barrier shared_address
/// Arrives; the phase also takes so many bytes.
__device__ inline void mbarrier_expect_tx(Barrier& barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}

//: mbarrier_wait needs Barrier shared_address
/// Until the phase of this parity is complete. The first one is 0; before it, that of parity 1 counts as complete.
__device__ inline void mbarrier_wait(Barrier& barrier, unsigned phase) {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
        "@complete bra done;\n"
        "bra again;\n"
        "done: }"
        :
        : "r"(shared_address(&barrier)), "r"(phase)
        : "memory");
}

//: fence_proxy_async
/// What this thread has written to shared memory, tma_store and wgmma see.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

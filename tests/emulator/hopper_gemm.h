// y[m, n] = sum_k x[m, k] * w[n, k] in bf16, 256 x 256 x 256, with all that Hopper has: clusters of two blocks that
// share w by multicast, a ring of three stages, a warpgroup that loads and two that multiply, tiles one after another,
// results through shared memory by TMA.
#pragma once

namespace tw::emulator {

inline constexpr const char* HopperGemm =
    R"(constexpr int K = 256, TILE_M = 128, TILE_N = 64, TILE_K = 64, STAGES = 3, CLUSTER = 2;
constexpr int TILES = 256 / TILE_N, K_TILES = K / TILE_K;
constexpr int X_BYTES = TILE_M * TILE_K * 2, W_BYTES = TILE_N * TILE_K * 2;

struct Shared {
    alignas(1024) tw::bf16 x[STAGES][TILE_M * TILE_K];
    alignas(1024) tw::bf16 w[STAGES][TILE_N * TILE_K];
    alignas(1024) tw::bf16 y[2][64 * TILE_N];
    tw::Barrier full[STAGES], empty[STAGES];
};

// A stage of the ring, and the parity of the pass over it.
struct Ring {
    int stage = 0;
    unsigned phase = 0;
    __device__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
gemm(const __grid_constant__ tw::TensorMap x_map, const __grid_constant__ tw::TensorMap w_map, const __grid_constant__ tw::TensorMap y_map) {
    Shared& s = tw::shared_memory<Shared>();
    const int rank = tw::cluster_rank(), group = threadIdx.x / 128, first_tile = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            tw::mbarrier_init(s.full[i], 1);
            tw::mbarrier_init(s.empty[i], 2 * CLUSTER);
        }
        tw::fence_mbarrier_init();
    }
    tw::cluster_arrive(), tw::cluster_wait();  // the barriers are there

    Ring ring;
    if (group == 0) {  // loads
        tw::setmaxnreg_dec<40>();
        if (threadIdx.x < 32 && tw::elect_one()) {
            for (int tile = first_tile; tile < TILES; tile += step) {
                for (int k = 0; k < K_TILES; ++k) {
                    tw::Barrier& full = s.full[ring.stage];
                    tw::mbarrier_wait(s.empty[ring.stage], ring.phase ^ 1);
                    tw::mbarrier_expect_tx(full, X_BYTES + W_BYTES);
                    tw::tma_load<2>(s.x[ring.stage], x_map, k * TILE_K, rank * TILE_M, full);
                    const int half = rank * (TILE_N / CLUSTER);
                    tw::tma_load_multicast<2>(s.w[ring.stage] + half * TILE_K, w_map, k * TILE_K, tile * TILE_N + half, full, 3);
                    ring.next();
                }
            }
        }
    } else {  // multiplies
        tw::setmaxnreg_inc<232>();
        const int wg = group - 1, thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane % 16;
        float acc[TILE_N / 2];
        for (int tile = first_tile; tile < TILES; tile += step) {
            int previous = -1;
            for (int k = 0; k < K_TILES; ++k) {
                tw::mbarrier_wait(s.full[ring.stage], ring.phase);
                const unsigned long long a = tw::matrix_descriptor(s.x[ring.stage] + wg * 64 * TILE_K, 128, 16, 1024);
                const unsigned long long b = tw::matrix_descriptor(s.w[ring.stage], 128, 16, 1024);
                tw::wgmma_fence_operand(acc);
                tw::wgmma_fence();
                for (int kk = 0; kk < TILE_K / 16; ++kk) tw::wgmma_m64n64k16_bf16(acc, a + 2 * kk, b + 2 * kk, (k | kk) != 0);
                tw::wgmma_commit();
                tw::wgmma_wait<1>();  // the stage before is free
                if (previous >= 0 && thread < CLUSTER) tw::mbarrier_arrive_at(s.empty[previous], thread);
                previous = ring.stage;
                ring.next();
            }
            tw::wgmma_wait<0>();
            tw::wgmma_fence_operand(acc);
            if (thread < CLUSTER) tw::mbarrier_arrive_at(s.empty[previous], thread);  // the last one too

            if (thread == 0) tw::tma_store_wait_read<0>();
            tw::barrier_sync(1 + wg, 128);  // y is free
            for (int j = 0; j < TILE_N / 16; ++j) {
                tw::bf16 part[8];
                for (int i = 0; i < 8; ++i) part[i] = tw::to_bf16(acc[8 * j + i]);
                const int unit = (2 * j + lane / 16) ^ (row % 8);
                tw::stmatrix<4>(s.y[wg] + row * TILE_N + unit * 8, part);
            }
            tw::fence_proxy_async();
            tw::barrier_sync(1 + wg, 128);  // y is complete
            if (thread == 0) {
                tw::tma_store<2>(y_map, tile * TILE_N, rank * TILE_M + wg * 64, s.y[wg]);
                tw::tma_store_commit();
            }
        }
        if (thread == 0) tw::tma_store_wait_read<0>();  // before y goes
    }
    tw::cluster_arrive(), tw::cluster_wait();  // no block leaves while its peer may use its barriers
}
)";

}  // namespace tw::emulator

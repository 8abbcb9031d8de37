// A whole Hopper kernel is silent and right on every seed; each of its mutations is caught on every seed.
#include "tests/emulator/hopper_gemm.h"

#include "device/vocabulary.h"
#include "tests/emulator/altered_kernels.h"
#include "tests/emulator/small_kernels.h"
#include "tests/emulator/tensor_map_argument.h"

namespace tw::emulator {
namespace {

constexpr size_t Size = 256;

struct Problem {
    alignas(128) uint16_t x[Size * Size], w[Size * Size], y[Size * Size];
    uint16_t expected[Size * Size];

    explicit Problem(uint32_t seed) {
        std::mt19937 random(seed);
        fill_small(x, random);
        fill_small(w, random);
        for (size_t i = 0; i < Size * Size; ++i) {
            const auto bits = std::bit_cast<uint32_t>(sum_of_products(x, w, i / Size, i % Size, Size));
            expected[i] = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
    }
};

struct Outcome {
    Report report;
    size_t num_wrong = 0;
};

std::string with_vocabulary(const std::string& kernel) { return device::vocabulary_text({"to_bf16"}) + kernel; }

Outcome run_gemm(const Module& module, Problem& problem, const Options& options) {
    std::fill(problem.y, problem.y + Size * Size, uint16_t(0xffff));
    TensorMapArgument x = matrix_map(problem.x, TensorElement::BF16, Size, Size, 128, 64, 128),
                      w = matrix_map(problem.w, TensorElement::BF16, Size, Size, 32, 64, 128),
                      y = matrix_map(problem.y, TensorElement::BF16, Size, Size, 64, 64, 128);
    Launch launch{.kernel = "gemm",
                  .grid = {4, 1, 1},
                  .threads = 384,
                  .cluster = 2,
                  .shared_bytes = 3 * (16384 + 8192) + 16384 + 48};
    launch.arguments = {&x, &w, &y};
    launch.regions = {{problem.x, sizeof problem.x, "x", false, true},
                      {problem.w, sizeof problem.w, "w", false, true},
                      {problem.y, sizeof problem.y, "y", true, false}};
    Outcome outcome{.report = emulator::run(module, launch, options)};
    for (size_t i = 0; i < Size * Size; ++i) outcome.num_wrong += problem.y[i] != problem.expected[i];
    return outcome;
}

std::shared_ptr<const Module> compiled_gemm(const std::string& text) {
    Source source{.name = "gemm", .text = with_vocabulary(text), .line_notes = {}};
    return compile({&source, 1});
}

TEST(HopperGemm, IsRightAndSilentOnEverySeed) {
    Problem problem(1);
    auto module = compiled_gemm(HopperGemm);
    for (uint64_t seed = 0; seed < 20; ++seed) {
        Outcome outcome = run_gemm(*module, problem, {.seed = seed});
        ASSERT_TRUE(outcome.report.ok()) << "seed " << seed << all_messages(outcome.report);
        ASSERT_EQ(outcome.num_wrong, 0u) << "seed " << seed;
        if (seed == 0)
            fmt::print("hopper gemm 256x256x256: {:.3f} s, {} steps\n", outcome.report.seconds,
                       outcome.report.accesses);
    }
}

TEST(HopperGemm, RunsWithoutChecksAndWithStatistics) {
    Problem problem(2);
    auto module = compiled_gemm(HopperGemm);
    for (const Options& options : {Options{.seed = 1, .check = false}, Options{.seed = 2, .statistics = true}}) {
        Outcome outcome = run_gemm(*module, problem, options);
        EXPECT_TRUE(outcome.report.ok()) << all_messages(outcome.report);
        EXPECT_EQ(outcome.num_wrong, 0u);
    }
}

// A ring of fewer stages is no mistake: both sides go by it.
const Mutation Mutations[] = {
    {"no wait for full", "tw::mbarrier_wait(s.full[ring.stage], ring.phase);", ""},
    {"no wait for empty", "tw::mbarrier_wait(s.empty[ring.stage], ring.phase ^ 1);", ""},
    {"wrong parity of full", "s.full[ring.stage], ring.phase)", "s.full[ring.stage], ring.phase ^ 1)"},
    {"wrong parity of empty", "ring.phase ^ 1)", "ring.phase)"},
    {"parity never changes", "phase ^= 1;", ""},
    {"parity changes at each stage",
     "if (++stage == STAGES) {\n            stage = 0;\n            phase ^= 1;\n        }",
     "phase ^= 1;\n        if (++stage == STAGES) stage = 0;"},
    {"ring of one stage more", "++stage == STAGES", "++stage == STAGES + 1"},
    {"bytes of x only", "X_BYTES + W_BYTES);", "X_BYTES);"},
    {"bytes of half of w", "X_BYTES + W_BYTES);", "X_BYTES + W_BYTES / 2);"},
    {"too many bytes", "X_BYTES + W_BYTES);", "X_BYTES + 2 * W_BYTES);"},
    {"no expectation", "tw::mbarrier_expect_tx(full, X_BYTES + W_BYTES);", ""},
    {"no fence of the barriers' beginning", "tw::fence_mbarrier_init();", ""},
    {"no barrier of the cluster at the beginning",
     "tw::cluster_arrive(), tw::cluster_wait();  // the barriers are there", ""},
    {"a barrier of the block at the beginning", "tw::cluster_arrive(), tw::cluster_wait();  // the barriers are there",
     "__syncthreads();"},
    {"no barrier of the cluster at the end", "tw::cluster_arrive(), tw::cluster_wait();  // no block", "// no block"},
    {"no load of x", "tw::tma_load<2>(s.x[ring.stage], x_map, k * TILE_K, rank * TILE_M, full);", ""},
    {"no load of w",
     "tw::tma_load_multicast<2>(s.w[ring.stage] + half * TILE_K, w_map, k * TILE_K, tile * TILE_N + half, full, 3);",
     ""},
    {"w for this block only", "full, 3);", "full, 1 << rank);"},
    {"w for the other block only", "full, 3);", "full, 2 >> rank);"},
    {"the same half of w twice", "s.w[ring.stage] + half * TILE_K", "s.w[ring.stage]"},
    {"the same rows of w twice", "tile * TILE_N + half, full", "tile * TILE_N, full"},
    {"x of the other block", "k * TILE_K, rank * TILE_M, full", "k * TILE_K, (rank ^ 1) * TILE_M, full"},
    {"k of the next tile", "s.x[ring.stage], x_map, k * TILE_K", "s.x[ring.stage], x_map, (k + 1) * TILE_K"},
    {"loads for another stage's barrier", "tw::Barrier& full = s.full[ring.stage];",
     "tw::Barrier& full = s.full[(ring.stage + 1) % STAGES];"},
    {"one arrival too few", "tw::mbarrier_init(s.empty[i], 2 * CLUSTER);",
     "tw::mbarrier_init(s.empty[i], 2 * CLUSTER - 1);"},
    {"one arrival too many", "tw::mbarrier_init(s.empty[i], 2 * CLUSTER);",
     "tw::mbarrier_init(s.empty[i], 2 * CLUSTER + 1);"},
    {"two arrivals for full", "tw::mbarrier_init(s.full[i], 1);", "tw::mbarrier_init(s.full[i], 2);"},
    {"all lanes load", "threadIdx.x < 32 && tw::elect_one()", "threadIdx.x < 32"},
    {"two warps load", "threadIdx.x < 32 && tw::elect_one()", "threadIdx.x < 64 && tw::elect_one()"},
    {"no wgmma_fence", "tw::wgmma_fence();", ""},
    {"no wgmma_commit", "tw::wgmma_commit();", ""},
    {"no wgmma_wait", "tw::wgmma_wait<0>();", ""},
    {"one product may be left", "tw::wgmma_wait<0>();", "tw::wgmma_wait<1>();"},
    {"the product before may still read", "tw::wgmma_wait<1>();", "tw::wgmma_wait<2>();"},
    {"no wait before the stage is given back", "tw::wgmma_wait<1>();", ""},
    {"gives back the stage that is read",
     "tw::mbarrier_arrive_at(s.empty[previous], thread);\n                previous",
     "tw::mbarrier_arrive_at(s.empty[ring.stage], thread);\n                previous"},
    {"gives back to itself only", "if (previous >= 0 && thread < CLUSTER)", "if (previous >= 0 && thread == rank)"},
    {"the last stage is not given back",
     "if (thread < CLUSTER) tw::mbarrier_arrive_at(s.empty[previous], thread);  // the last one too", ""},
    {"the first stage is given back unread", "previous >= 0 && thread < CLUSTER",
     "thread < CLUSTER && (previous = previous < 0 ? 0 : previous) >= 0"},
    {"adds to what was there", "(k | kk) != 0", "true"},
    {"forgets what was there", "(k | kk) != 0", "kk != 0"},
    {"half steps in k", "a + 2 * kk, b + 2 * kk", "a + kk, b + kk"},
    {"a does not step", "a + 2 * kk, b", "a, b"},
    {"wrong stride", "wg * 64 * TILE_K, 128, 16, 1024", "wg * 64 * TILE_K, 128, 16, 512"},
    {"wrong swizzle", "s.w[ring.stage], 128, 16, 1024", "s.w[ring.stage], 64, 16, 1024"},
    {"both warpgroups the same rows", "s.x[ring.stage] + wg * 64 * TILE_K", "s.x[ring.stage]"},
    {"w of the first stage", "tw::matrix_descriptor(s.w[ring.stage]", "tw::matrix_descriptor(s.w[0]"},
    {"y not swizzled", "(2 * j + lane / 16) ^ (row % 8)", "2 * j + lane / 16"},
    {"no proxy fence", "tw::fence_proxy_async();", ""},
    {"proxy fence behind the barrier, by others",
     "tw::fence_proxy_async();\n            tw::barrier_sync(1 + wg, 128);",
     "tw::barrier_sync(1 + wg, 128);\n            if (thread > 0) tw::fence_proxy_async();"},
    {"y stored before it is complete", "tw::barrier_sync(1 + wg, 128);  // y is complete", ""},
    {"y overwritten before it is free", "tw::barrier_sync(1 + wg, 128);  // y is free", ""},
    {"y not waited for", "if (thread == 0) tw::tma_store_wait_read<0>();\n            tw::barrier_sync",
     "tw::barrier_sync"},
    {"y of the tile before not waited for",
     "if (thread == 0) tw::tma_store_wait_read<0>();\n            tw::barrier_sync",
     "if (thread == 0) tw::tma_store_wait_read<1>();\n            tw::barrier_sync"},
    {"another thread waits for y", "if (thread == 0) tw::tma_store_wait_read<0>();\n            tw::barrier_sync",
     "if (thread == 1) tw::tma_store_wait_read<0>();\n            tw::barrier_sync"},
    {"returns before y is read", "tw::tma_store_wait_read<0>();  // before y goes", ";"},
    {"no tma_store_commit", "tw::tma_store_commit();", ""},
    {"y stored twice", "if (thread == 0) {\n                tw::tma_store",
     "if (thread < 2) {\n                tw::tma_store"},
    {"y to the other block's rows", "rank * TILE_M + wg * 64, s.y", "(rank ^ 1) * TILE_M + wg * 64, s.y"},
    {"both warpgroups at one barrier", "tw::barrier_sync(1 + wg, 128);  // y is complete", "tw::barrier_sync(1, 128);"},
    {"too many registers", "tw::setmaxnreg_inc<232>();", "tw::setmaxnreg_inc<240>();"},
    {"too few registers for the products", "tw::setmaxnreg_inc<232>();", "tw::setmaxnreg_dec<40>();"},
    {"no registers given up", "tw::setmaxnreg_dec<40>();", ""},
    {"half of a warpgroup gives up registers", "tw::setmaxnreg_dec<40>();",
     "if (threadIdx.x < 64) tw::setmaxnreg_dec<40>();"},
};

TEST(HopperGemm, EveryMutationIsCaughtOnEverySeed) {
    Problem problem(1);
    size_t num_reports = 0, num_by_value = 0;
    auto is_caught = [&](const Module& module, const Mutation& mutation, uint64_t seed) {
        Outcome outcome = run_gemm(module, problem, {.seed = seed});
        ++(outcome.report.ok() ? num_by_value : num_reports);
        if (seed == 0 && std::getenv("TW_SHOW_FINDINGS"))
            fmt::print("{}: {}\n", mutation.name,
                       outcome.report.ok() ? fmt::format("{} wrong values", outcome.num_wrong)
                                           : outcome.report.findings[0].message);
        return !outcome.report.ok() || outcome.num_wrong > 0;
    };
    expect_all_caught(with_vocabulary(HopperGemm), Mutations, 3, is_caught);
    fmt::print("{} mutations, 3 seeds: {} reported, {} seen by values alone\n", std::size(Mutations), num_reports,
               num_by_value);
}

}  // namespace
}  // namespace tw::emulator

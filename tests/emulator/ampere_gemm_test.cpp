// A product as Ampere makes it: asynchronous copies in a ring of three stages, ldmatrix, mma.sync. Silent and right on
// every seed; each of its mutations is caught on every seed. And the same operands by copies for wgmma.
#include "tests/emulator/altered_kernels.h"
#include "tests/emulator/small_kernels.h"

namespace tw::emulator {
namespace {

constexpr const char* AmpereGemm =
    R"(struct Shared { alignas(16) tw::bf16 x[3][64 * 24], w[3][64 * 24]; };  // rows of 16, 48 bytes apart

extern "C" __global__ void __launch_bounds__(128) gemm(const tw::bf16* x, const tw::bf16* w, float* y) {
    Shared& s = tw::shared_memory<Shared>();
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, row = thread / 2, half = thread % 2 * 8;
    float acc[8][4] = {};
    for (int k = 0; k < 2; ++k) {
        tw::cp_async<8>(&s.x[k][row * 24 + half], x + row * 96 + k * 16 + half);
        tw::cp_async<8>(&s.w[k][row * 24 + half], w + row * 96 + k * 16 + half);
        tw::cp_async_commit();
    }
    for (int k = 0; k < 6; ++k) {
        tw::cp_async_wait<1>();
        __syncthreads();
        const int stage = k % 3, next = (k + 2) % 3;
        if (k + 2 < 6) {
            tw::cp_async<8>(&s.x[next][row * 24 + half], x + row * 96 + (k + 2) * 16 + half);
            tw::cp_async<8>(&s.w[next][row * 24 + half], w + row * 96 + (k + 2) * 16 + half);
        }
        tw::cp_async_commit();
        tw::bf16 a[8], b[4];
        tw::ldmatrix<4>(a, &s.x[stage][(16 * warp + lane % 16) * 24 + lane / 16 * 8]);
        for (int n = 0; n < 8; ++n) {
            tw::ldmatrix<2>(b, &s.w[stage][(8 * n + lane % 8) * 24 + lane / 8 % 2 * 8]);
            tw::mma_m16n8k16(acc[n], a, b);
        }
    }
    for (int n = 0; n < 8; ++n)
        for (int i = 0; i < 4; ++i) y[(16 * warp + lane / 4 + i / 2 * 8) * 64 + 8 * n + lane % 4 * 2 + i % 2] = acc[n][i];
}
)";

struct Problem {
    alignas(128) uint16_t x[64 * 96], w[64 * 96];
    alignas(128) float y[64 * 64];
    float expected[64 * 64];

    Problem() {
        std::mt19937 random(7);
        fill_small(x, random);
        fill_small(w, random);
        for (size_t i = 0; i < 64 * 64; ++i) expected[i] = sum_of_products(x, w, i / 64, i % 64, 96);
    }

    /// Whether nothing is reported and everything right; the findings otherwise.
    bool runs(const Module& module, uint64_t seed, std::string* messages = nullptr) {
        std::fill(y, y + 64 * 64, std::bit_cast<float>(0x7fffffff));
        void *x_pointer = x, *w_pointer = w, *y_pointer = y;
        Launch launch{.kernel = "gemm", .threads = 128, .shared_bytes = 6 * 64 * 48};
        launch.arguments = {&x_pointer, &w_pointer, &y_pointer};
        launch.regions = {{x, sizeof x, "x", false}, {w, sizeof w, "w", false}, {y, sizeof y, "y", true, false}};
        Report report = emulator::run(module, launch, {.seed = seed});
        if (messages) *messages = all_messages(report);
        return report.ok() && std::equal(y, y + 64 * 64, expected);
    }
};

TEST(AmpereGemm, IsRightAndSilentOnEverySeed) {
    Problem problem;
    Source source{.name = "gemm", .text = AmpereGemm, .line_notes = {}};
    auto module = compile({&source, 1});
    for (uint64_t seed = 0; seed < 20; ++seed) {
        std::string messages;
        ASSERT_TRUE(problem.runs(*module, seed, &messages)) << seed << messages;
    }
}

const Mutation Mutations[] = {
    {"no wait for copies", "tw::cp_async_wait<1>();", ""},
    {"one stage may be left too many", "tw::cp_async_wait<1>();", "tw::cp_async_wait<2>();"},
    {"no barrier", "__syncthreads();", ""},
    {"a barrier of the warp", "__syncthreads();", "__syncwarp();"},
    {"the barrier before the wait", "tw::cp_async_wait<1>();\n        __syncthreads();",
     "__syncthreads();\n        tw::cp_async_wait<1>();"},
    {"no commit in the loop", "        tw::cp_async_commit();\n        tw::bf16", "        tw::bf16"},
    {"no commit before the loop", "        tw::cp_async_commit();\n    }\n    for", "    }\n    for"},
    {"overwrites the stage that is read", "next = (k + 2) % 3", "next = (k + 3) % 3"},
    {"overwrites the next stage", "next = (k + 2) % 3", "next = (k + 1) % 3"},
    {"reads the next stage", "k % 3, next", "(k + 1) % 3, next"},
    {"one copy too few", "if (k + 2 < 6)", "if (k + 2 < 5)"},
    {"copies behind the last k", "if (k + 2 < 6)", ""},
    {"x of the k before", "x + row * 96 + (k + 2)", "x + row * 96 + (k + 1)"},
    {"one row of w left out", "tw::cp_async<8>(&s.w[next]", "if (row != 63) tw::cp_async<8>(&s.w[next]"},
    {"halves of a by half steps", "lane / 16 * 8]);", "lane / 16 * 4]);"},
    {"one half of b", "lane / 8 % 2 * 8]);", "0]);"},
    {"lanes of the upper half load nothing", "tw::ldmatrix<2>(b", "if (lane < 16) tw::ldmatrix<2>(b"},
    {"b transposed", "tw::ldmatrix<2>(b", "tw::ldmatrix_trans<2>(b"},
    {"a ring of x that is too short", "alignas(16) tw::bf16 x[3][64 * 24], w[3][64 * 24];",
     "alignas(16) tw::bf16 x[2][64 * 24], w[3][64 * 24];"},
    {"one product left out", "tw::mma_m16n8k16(acc[n], a, b)", "if (n) tw::mma_m16n8k16(acc[n], a, b)"},
};

TEST(AmpereGemm, EveryMutationIsCaughtOnEverySeed) {
    Problem problem;
    expect_all_caught(AmpereGemm, Mutations, 8, [&](const Module& module, const Mutation&, uint64_t seed) {
        return !problem.runs(module, seed);
    });
}

// What a thread has copied for wgmma needs its wait, its proxy fence and the barrier, in this order.
TEST(CopiesForWgmma, NeedWaitFenceAndBarrier) {
    auto with = [](const std::string& between) {
        return Case{.body =
                        "unsigned char* bytes = (unsigned char*)shared;\n"
                        "for (int i = 16 * t; i < 16384; i += 2048) tw::cp_async_or_zero<16>(bytes + i, (const "
                        "unsigned char*)in, false);\n"
                        "tw::cp_async_commit();\n" +
                        between +
                        "float d[32];\ntw::wgmma_fence();\n"
                        "tw::wgmma_m64n64k16_bf16(d, tw::matrix_descriptor(bytes, 128, 16, 1024), "
                        "tw::matrix_descriptor(bytes + 8192, 128, 16, 1024), false);\n"
                        "tw::wgmma_commit();\ntw::wgmma_wait<0>();\nout[t] = tw::to_i32(d[n & 7]);",
                    .threads = 128,
                    .shared_bytes = 16384};
    };
    const std::string wait = "tw::cp_async_wait<0>();\n", fence = "tw::fence_proxy_async();\n",
                      barrier = "__syncthreads();\n";
    expect_silence(with(wait + fence + barrier));
    expect_silence(with(wait + barrier + fence));
    expect_finding(with(fence + barrier), Kind::InFlight, 0, "the wgmma of thread (");
    expect_finding(with(fence + wait + barrier), Kind::Unfenced, 0, "the wgmma of thread (");
    expect_finding(with(wait + fence), Kind::Race, 0, "the wgmma of thread (");
    expect_finding(with(fence + barrier + wait), Kind::Race, 0, "the wgmma of thread (");
}

}  // namespace
}  // namespace tw::emulator

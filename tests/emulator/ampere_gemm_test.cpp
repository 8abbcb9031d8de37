// A product as Ampere makes it: asynchronous copies in a ring of three stages, ldmatrix, mma.sync. Silent and right on
// every seed; each of its mutations is caught on every seed. And the same operands by copies for wgmma.
#include <bit>
#include <random>

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
        for (uint16_t* operand : {x, w})
            for (int i = 0; i < 64 * 96; ++i)
                operand[i] = uint16_t(std::bit_cast<uint32_t>(float(int(random() % 9) - 4)) >> 16);
        auto value = [](uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); };
        for (int m = 0; m < 64; ++m)
            for (int n = 0; n < 64; ++n) {
                float& sum = expected[m * 64 + n] = 0;
                for (int k = 0; k < 96; ++k) sum += value(x[m * 96 + k]) * value(w[n * 96 + k]);
            }
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

Source source_of(const std::string& text) { return {.name = "gemm", .text = text, .line_notes = {}}; }

TEST(AmpereGemm, IsRightAndSilentOnEverySeed) {
    Problem problem;
    Source source = source_of(AmpereGemm);
    auto module = compile({&source, 1});
    for (uint64_t seed = 0; seed < 20; ++seed) {
        std::string messages;
        ASSERT_TRUE(problem.runs(*module, seed, &messages)) << seed << messages;
    }
}

TEST(AmpereGemm, EveryMutationIsCaughtOnEverySeed) {
    const std::pair<const char*, const char*> mutations[] = {
        {"tw::cp_async_wait<1>();", ""},
        {"tw::cp_async_wait<1>();", "tw::cp_async_wait<2>();"},
        {"__syncthreads();", ""},
        {"__syncthreads();", "__syncwarp();"},
        {"tw::cp_async_wait<1>();\n        __syncthreads();", "__syncthreads();\n        tw::cp_async_wait<1>();"},
        {"        tw::cp_async_commit();\n        tw::bf16", "        tw::bf16"},
        {"        tw::cp_async_commit();\n    }\n    for", "    }\n    for"},
        {"next = (k + 2) % 3", "next = (k + 3) % 3"},
        {"next = (k + 2) % 3", "next = (k + 1) % 3"},
        {"k % 3, next", "(k + 1) % 3, next"},
        {"if (k + 2 < 6)", "if (k + 2 < 5)"},
        {"if (k + 2 < 6)", ""},
        {"x + row * 96 + (k + 2)", "x + row * 96 + (k + 1)"},
        {"tw::cp_async<8>(&s.w[next]", "if (row != 63) tw::cp_async<8>(&s.w[next]"},
        {"lane / 16 * 8]);", "lane / 16 * 4]);"},
        {"lane / 8 % 2 * 8]);", "0]);"},
        {"tw::ldmatrix<2>(b", "if (lane < 16) tw::ldmatrix<2>(b"},
        {"tw::ldmatrix<2>(b", "tw::ldmatrix_trans<2>(b"},
        {"alignas(16) tw::bf16 x[3][64 * 24], w[3][64 * 24];", "alignas(16) tw::bf16 x[2][64 * 24], w[3][64 * 24];"},
        {"tw::mma_m16n8k16(acc[n], a, b)", "if (n) tw::mma_m16n8k16(acc[n], a, b)"},
    };
    Problem problem;
    std::vector<Source> sources;
    for (auto [from, to] : mutations) {
        std::string text = AmpereGemm;
        const size_t at = text.find(from);
        ASSERT_NE(at, std::string::npos) << from;
        sources.push_back(source_of(text.replace(at, std::string(from).size(), to)));
    }
    auto modules = compile_together(sources);
    for (size_t i = 0; i < modules.size(); ++i)
        for (uint64_t seed = 0; seed < 8; ++seed)
            EXPECT_FALSE(problem.runs(*modules[i], seed))
                << mutations[i].first << " -> " << mutations[i].second << ", seed " << seed;
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

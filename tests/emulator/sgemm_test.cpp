// A whole kernel: right, fast enough, silent on every seed, and loud with a barrier less.
#include <ctime>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/emulator/emulator.h"
#include "tests/emulator/sgemm.h"

namespace tw::emulator {
namespace {

struct Product {
    int m, n, k;
    std::vector<float> a, b, c;

    Product(int m, int n, int k) : m(m), n(n), k(k), a(size_t(m * k)), b(size_t(k * n)), c(size_t(m * n), 0.0f) {
        for (size_t i = 0; i < a.size(); ++i) a[i] = float(int(i * 7 % 9) - 4);  // small integers: sums are exact
        for (size_t i = 0; i < b.size(); ++i) b[i] = float(int(i * 5 % 11) - 5);
    }

    Report run(const Module& module, const Options& options = {}) {
        float *pa = a.data(), *pb = b.data(), *pc = c.data();
        Launch launch{.kernel = "sgemm",
                      .grid = {unsigned(n / 64), unsigned(m / 64), 1},
                      .threads = 256,
                      .shared_bytes = 16 * 68 * 4 + 16 * 64 * 4,
                      .arguments = {&pa, &pb, &pc, &m, &n, &k},
                      .regions = {{pa, a.size() * 4, "a", false, true},
                                  {pb, b.size() * 4, "b", false, true},
                                  {pc, c.size() * 4, "c", true, false}}};
        return emulator::run(module, launch, options);
    }

    float expected(int i, int j) const {
        float sum = 0;
        for (int s = 0; s < k; ++s) sum += a[size_t(i * k + s)] * b[size_t(s * n + j)];
        return sum;
    }
};

std::shared_ptr<const Module> compiled(const std::string& text) {
    Source source{.name = "sgemm", .text = text, .line_notes = {}};
    return compile({&source, 1});
}

std::string first_message(const Report& report) { return report.ok() ? "" : report.findings[0].message; }

TEST(Sgemm, IsRightAndFastEnough) {
    auto module = compiled(sgemm_text());
    Product product(256, 256, 512);
    const std::clock_t begin = std::clock();  // of this process alone, however busy the machine is
    Report report = product.run(*module);
    const double seconds = double(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_TRUE(report.ok()) << first_message(report);
    for (int i = 0; i < product.m; i += 5)
        for (int j = 0; j < product.n; j += 7) ASSERT_EQ(product.c[size_t(i * product.n + j)], product.expected(i, j));
    const double millions = double(report.accesses) * 1e-6;
    fmt::print("sgemm 256x256x512: {:.1f} M accesses in {:.3f} s: {:.0f} M accesses/s\n", millions, seconds,
               millions / seconds);
    EXPECT_GT(millions / seconds, 20) << "loose: about 200 on a machine of its own";
}

TEST(Sgemm, IsSilentOnEverySeed) {
    auto module = compiled(sgemm_text());
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Report report = Product(128, 64, 48).run(*module, {.seed = seed});
        ASSERT_TRUE(report.ok()) << "seed " << seed << ": " << first_message(report);
    }
}

TEST(Sgemm, EitherBarrierIsMissed) {
    for (const std::string& text : {sgemm_text("", "__syncthreads();"), sgemm_text("__syncthreads();", "")}) {
        auto module = compiled(text);
        for (uint64_t seed = 0; seed < 20; ++seed) {
            Report report = Product(128, 64, 48).run(*module, {.seed = seed});
            ASSERT_FALSE(report.ok()) << "seed " << seed;
            EXPECT_THAT(first_message(report), testing::HasSubstr("shared memory")) << "seed " << seed;
        }
    }
}

TEST(Sgemm, StatisticsCountEveryRequest) {
    auto module = compiled(sgemm_text());
    Report report = Product(64, 64, 16).run(*module, {.statistics = true});
    const Statistics& s = report.statistics;
    EXPECT_TRUE(report.ok()) << first_message(report);
    EXPECT_EQ(s.barriers, 2u);
    EXPECT_EQ(s.global_writes, 64u * 64);
    EXPECT_EQ(s.global_reads, 2u * 64 * 16);
    EXPECT_EQ(s.global_requests, (64u * 64 + 2 * 64 * 16) / 32);
    EXPECT_EQ(s.shared_writes, 2u * 64 * 16);
    EXPECT_GT(s.shared_bank_conflicts, 0u);  // columns of a are written at a distance of 68 words
}

}  // namespace
}  // namespace tw::emulator

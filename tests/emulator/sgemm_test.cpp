// A whole kernel: right, fast enough, silent on every seed, and loud with a barrier less.
#include <algorithm>
#include <ctime>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/sgemm.h"

namespace tw::emulator {
namespace {

std::string first_message(const Report& report) { return report.ok() ? "" : report.findings[0].message; }

TEST(Sgemm, IsRightAndFastEnough) {
    auto module = compile_sgemm();
    constexpr double least = 20;
    double fastest = 0;  // of a few runs: what neighbours do to caches comes and goes
    for (int run = 0; run < 5; ++run) {
        Product product(256, 256, 512);
        const std::clock_t begin = std::clock();  // of this process alone, however busy the machine is
        Report report = product.run(*module);
        const double seconds = double(std::clock() - begin) / CLOCKS_PER_SEC;
        EXPECT_TRUE(report.ok()) << first_message(report);
        EXPECT_TRUE(product.is_right());
        const double millions = double(report.accesses) * 1e-6;
        fmt::print("sgemm 256x256x512: {:.1f} M accesses in {:.3f} s: {:.0f} M accesses/s\n", millions, seconds,
                   millions / seconds);
        fastest = std::max(fastest, millions / seconds);
        if (fastest > least) break;
    }
    EXPECT_GT(fastest, least) << "loose: about 200 on a machine of its own";
}

TEST(Sgemm, IsSilentOnEverySeed) {
    auto module = compile_sgemm();
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Report report = Product(128, 64, 48).run(*module, {.seed = seed});
        ASSERT_TRUE(report.ok()) << "seed " << seed << ": " << first_message(report);
    }
}

TEST(Sgemm, EitherBarrierIsMissed) {
    for (const std::string& text : {sgemm_text("", "__syncthreads();"), sgemm_text("__syncthreads();", "")}) {
        auto module = compile_sgemm(text);
        for (uint64_t seed = 0; seed < 20; ++seed) {
            Report report = Product(128, 64, 48).run(*module, {.seed = seed});
            ASSERT_FALSE(report.ok()) << "seed " << seed;
            EXPECT_THAT(first_message(report), testing::HasSubstr("shared memory")) << "seed " << seed;
        }
    }
}

TEST(Sgemm, StatisticsCountEveryRequest) {
    auto module = compile_sgemm();
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

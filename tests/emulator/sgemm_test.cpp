// A whole kernel: right, fast enough, silent on every seed, and loud with a barrier less.
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/sgemm.h"

namespace tw::emulator {
namespace {

std::string first_message(const Report& report) { return report.ok() ? "" : report.findings[0].message; }

/// Seconds of this process alone, however busy the machine is.
template <class Work>
double seconds_of(const Work& work) {
    const std::clock_t begin = std::clock();
    work();
    return double(std::clock() - begin) / CLOCKS_PER_SEC;
}

/// What this machine needs now for so many steps of a walk through a few megabytes, each of which waits for the one
/// before: neighbours slow it down as they do an emulated product.
double seconds_of_walk(int64_t steps) {
    std::vector<uint32_t> next(1 << 20);
    for (uint32_t at = 0; at < next.size(); ++at) next[at] = (at * 1664525u + 1013904223u) % (1u << 20);  // one cycle
    uint32_t at = 0;
    const double seconds = seconds_of([&] {
        for (int64_t step = 0; step < steps; ++step) at = next[at];
    });
    EXPECT_LT(at, next.size());
    return seconds;
}

TEST(Sgemm, IsRightAndFastEnough) {
    auto module = compile_sgemm();
    constexpr double most = 4;  // steps of the walk that an access may take
    double least = 1e9;         // of a few runs: what neighbours do to caches comes and goes
    for (int run = 0; run < 5; ++run) {
        Product product(256, 256, 512);
        Report report;
        const double seconds = seconds_of([&] { report = product.run(*module); });
        EXPECT_TRUE(report.ok()) << first_message(report);
        EXPECT_TRUE(product.is_right());
        const auto accesses = static_cast<int64_t>(report.accesses);
        const double steps = seconds / seconds_of_walk(accesses);
        fmt::print("sgemm 256x256x512: {:.1f} M accesses in {:.3f} s: {:.0f} M accesses/s, {:.2f} steps each\n",
                   double(accesses) * 1e-6, seconds, double(accesses) * 1e-6 / seconds, steps);
        least = std::min(least, steps);
        if (least < most) break;
    }
    EXPECT_LT(least, most);
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

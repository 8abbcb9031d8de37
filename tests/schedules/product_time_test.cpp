// The model of f32 products by threads beside what an H200 measured, and what the rule takes of the space.
#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "schedules/catalog.h"
#include "schedules/product_space.h"
#include "schedules/product_tiles.h"
#include "tests/schedules/measured_times.h"

namespace tw::schedules {
namespace {

constexpr double of_a_second = 1e3;  // milliseconds

ProductShape shape_of(const std::string& name) {
    const size_t behind = std::string("product_").size();
    std::istringstream text(name.substr(behind));
    ProductShape shape{};
    char times = 0;
    text >> shape.m >> times >> shape.n >> times >> shape.k;
    shape.transpose_a = name.find("_ta") != name.npos, shape.transpose_b = name.find("_tb") != name.npos;
    shape.add_c = name.find("_ab") != name.npos;
    return shape;
}

double of_threads(const std::string& name, const std::string& tiling) {
    return seconds_of(parse_product_tiles(tiling).value(), shape_of(name), target("sm_90a")) * of_a_second;
}

MeasuredTimes measured_products() { return read_measured_times("tests/schedules/measured_threads.txt", of_threads); }

TEST(ProductTime, PrefersWhatWasMeasuredToBeFast) {
    const MeasuredTimes all = measured_products();
    ASSERT_GT(all.size(), 30u);
    expect_little_regret(all, 1.05, 1.3);
}

// Operands whose rows threads do not share evenly: 1.20 before copies of these cost more than others, 1.09 before
// blocks that are alone did.
TEST(ProductTime, PrefersEvenCopies) {
    const MeasuredTimes all = read_measured_times("tests/schedules/measured_copies.txt", of_threads);
    ASSERT_EQ(all.size(), 10u);
    expect_little_regret(all, 1.03, 1.17);
}

// A multiprocessor's only block waits, for its loads and at its barriers: 1.057 before that was in the model, and pairs
// of elements that threads do not share evenly. What is left is 128x3829x640, whose small tiles take 1.4 times as long.
TEST(ProductTime, KnowsThatBlocksAloneWait) {
    const MeasuredTimes all = read_measured_times("tests/schedules/measured_alone.txt", of_threads);
    ASSERT_EQ(all.size(), 34u);
    expect_little_regret(all, 1.03, 1.41);
}

// Of many sums of a thread, those with more rows than columns are the faster.
TEST(ProductTime, PrefersTallTilesOfThreads) {
    const MeasuredTimes all = read_measured_times("tests/schedules/measured_large.txt", of_threads);
    ASSERT_EQ(all.size(), 19u);
    expect_little_regret(all, 1.02, 1.10);
}

TEST(ProductTime, IsNearTheMeasuredTime) {
    MeasuredTimes all = measured_products();
    all.merge(read_measured_times("tests/schedules/measured_copies.txt", of_threads));
    all.merge(read_measured_times("tests/schedules/measured_large.txt", of_threads));
    expect_near_times(all, 390, 1.13, 1.33);
}

ProductShape random_shape(std::mt19937& random) {
    auto extent = [&] { return int64_t(std::exp2(std::uniform_real_distribution<>(0, 14)(random))); };
    ProductShape shape{.m = extent(), .n = extent(), .k = extent()};
    shape.transpose_a = random() % 2, shape.transpose_b = random() % 2, shape.add_c = random() % 2;
    return shape;
}

// What the rule takes is in the space, and none there is faster.
TEST(ProductTime, RuleTakesTheBestOfTheSpace) {
    std::mt19937 random(std::random_device{}());
    for (int round = 0; round < 20; ++round) {
        const ProductShape shape = random_shape(random);
        SCOPED_TRACE(
            fmt::format("{}x{}x{}, transposes {} {}", shape.m, shape.n, shape.k, shape.transpose_a, shape.transpose_b));
        for (const Target& some : {target("sm_90a"), target("sm_80")}) {
            const ProductTiles taken = product_tiles(shape, some);
            const double seconds = seconds_of(taken, shape, some);
            ASSERT_TRUE(std::isfinite(seconds));
            bool is_there = false;
            for (const ProductTiles& other : product_space(shape, some)) {
                ASSERT_LE(seconds, seconds_of(other, shape, some)) << tiling_text(other);
                is_there = is_there || tiling_text(other) == tiling_text(taken);
            }
            EXPECT_TRUE(is_there) << tiling_text(taken);
        }
    }
}

// Loads that go through registers come one step early, whatever stages there are: steps of more terms wait less often.
TEST(ProductTime, WaitsForLoadsThroughRegisters) {
    const ProductTiles tiles{.block_m = 48, .block_n = 32, .block_k = 16, .thread_m = 4, .thread_n = 4, .stages = 4};
    ProductTiles two = tiles, longer = tiles;
    two.stages = 2, longer.block_k = 32, longer.stages = 3;
    auto seconds = [](const ProductTiles& t, int64_t n) {
        return seconds_of(t, {.m = 48, .n = n, .k = 448, .transpose_a = true}, target("sm_90a"));
    };
    EXPECT_LT(seconds(longer, 4077), 0.7 * seconds(tiles, 4077));
    EXPECT_GT(seconds(two, 4080), 1.5 * seconds(tiles, 4080));
    EXPECT_LT(seconds(two, 4077), 1.1 * seconds(tiles, 4077));
}

// Stores of chunks that are wider than rows are aligned cost more.
TEST(ProductTime, KnowsWhatColumnsAllow) {
    const ProductTiles wide{.block_m = 64, .block_n = 128, .block_k = 8, .thread_m = 8, .thread_n = 4, .stages = 1};
    ProductTiles apart = wide;
    apart.chunk_n = 1;
    auto seconds = [](const ProductTiles& tiles, int64_t n) {
        return seconds_of(tiles, {.m = 8192, .n = n, .k = 8}, target("sm_90a"));
    };
    EXPECT_LT(seconds(wide, 8192), seconds(wide, 8191));
    EXPECT_LT(seconds(apart, 8191), seconds(wide, 8191));
}

}  // namespace
}  // namespace tw::schedules

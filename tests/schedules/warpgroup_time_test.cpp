// The model of products by warpgroups beside what an H200 measured, and what the rule takes of the space.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "schedules/tensor_product.h"
#include "schedules/tensor_product_names.h"
#include "schedules/warpgroup_space.h"

namespace tw::schedules {
namespace {

struct Measured {
    WarpgroupTiles tiles;
    double milliseconds, predicted;
};

/// By name of the product.
std::map<std::string, std::vector<Measured>> measured_products() {
    std::map<std::string, std::vector<Measured>> all;
    std::ifstream file("tests/schedules/measured_products.txt");
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string name, tiling;
        double milliseconds = 0;
        if (line.starts_with("#") || !(words >> name >> tiling >> milliseconds)) continue;
        const WarpgroupTiles tiles = std::get<WarpgroupTiles>(parse_tiling(tiling).value());
        const TensorProductShape read = with_read_transposes(parse_tensor_product(name).value().shape);
        constexpr double cycles_a_millisecond = 1.755e6;
        const double cycles = predicted_cycles(tiles, read, target("sm_90a"));
        all[name].push_back({tiles, milliseconds, cycles / cycles_a_millisecond});
    }
    return all;
}

// Of each product's tilings, the one that the model expects to be fastest: little slower than the one that was.
TEST(WarpgroupTime, PrefersWhatWasMeasuredToBeFast) {
    double regret = 0, worst = 0;
    const auto all = measured_products();
    ASSERT_GT(all.size(), 80u);
    for (const auto& [name, tilings] : all) {
        auto chosen = std::ranges::min_element(tilings, {}, &Measured::predicted);
        auto fastest = std::ranges::min_element(tilings, {}, &Measured::milliseconds);
        const double times = chosen->milliseconds / fastest->milliseconds;
        regret += std::log(times) / static_cast<double>(all.size());
        worst = std::max(worst, times);
    }
    EXPECT_LT(std::exp(regret), 1.035);  // the model before: 1.11; tilings taken by chance: 1.14
    EXPECT_LT(worst, 1.25);
}

// The time itself, which is compared with that of tiles of warps and of threads: those of products without copies.
TEST(WarpgroupTime, IsNearTheMeasuredTime) {
    std::vector<double> errors;
    for (const auto& [name, tilings] : measured_products()) {
        if (wants_copied_operands(parse_tensor_product(name).value().shape)) continue;
        for (const Measured& one : tilings) errors.push_back(std::abs(std::log(one.predicted / one.milliseconds)));
    }
    ASSERT_GT(errors.size(), 300u);
    std::ranges::sort(errors);
    EXPECT_LT(errors[errors.size() / 2], std::log(1.15));
    EXPECT_LT(errors[errors.size() * 9 / 10], std::log(1.5));
}

// Walks are those of the schedule; a prime number of rows makes no groups.
TEST(WarpgroupTime, WalksInGroupsThatDivide) {
    EXPECT_EQ(walk_of(24, 5, 8).together, 8);
    EXPECT_EQ(walk_of(26, 5, 8).together, 5);  // of columns: rows have 2
    EXPECT_TRUE(walk_of(26, 5, 8).by_columns);
    EXPECT_FALSE(walk_of(26, 5, 16).by_columns);
    EXPECT_EQ(walk_of(26, 5, 16).together, 13);
    EXPECT_EQ(walk_of(13, 7, 4).together, 1);
    EXPECT_EQ(walk_of(0, 0, 8).together, 1);
}

// What the rule takes is in the space that the tuner searches, but for the order of blocks, and none there is faster.
TEST(WarpgroupTime, RuleTakesTheBestOfTheSpace) {
    std::mt19937 random(std::random_device{}());
    auto extent = [&] { return 8 * int64_t(std::exp2(std::uniform_real_distribution<>(0, 11)(random))); };
    for (int round = 0; round < 20; ++round) {
        TensorProductShape shape{.m = extent(), .n = extent(), .k = extent()};
        shape.transpose_a = random() % 2, shape.transpose_b = random() % 2;
        SCOPED_TRACE(fmt::format("{}x{}x{} {} {}", shape.m, shape.n, shape.k, shape.transpose_a, shape.transpose_b));
        const std::vector<WarpgroupTiles> space = warpgroup_space(shape, target("sm_90a"));
        ASSERT_FALSE(space.empty());
        WarpgroupTiles taken = warpgroup_tiles(shape, target("sm_90a"));
        const double cycles = predicted_cycles(taken, shape, target("sm_90a"));
        for (const WarpgroupTiles& other : space)
            EXPECT_LE(cycles, predicted_cycles(other, shape, target("sm_90a"))) << tiling_text(other);
        taken.raster_group = WarpgroupTiles().raster_group;
        EXPECT_EQ(std::ranges::count(space, taken), 1) << tiling_text(taken);
    }
}

}  // namespace
}  // namespace tw::schedules

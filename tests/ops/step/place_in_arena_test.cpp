#include "ops/step/place_in_arena.h"

#include <random>

#include <gtest/gtest.h>

namespace tw {
namespace {

bool meet(const ArenaRequest& a, const ArenaRequest& b) { return a.from <= b.to && b.from <= a.to; }

TEST(PlaceInArena, KeepsApartWhatLivesTogether) {
    std::mt19937 random(std::random_device{}());
    auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (int trial = 0; trial < 300; ++trial) {
        std::vector<ArenaRequest> requests;
        for (int n = below(40); n >= 0; --n) {
            const int from = below(30);
            requests.push_back({below(4) == 0 ? 0 : 1 + below(5000), from, from + below(8)});
        }
        const ArenaPlacement placed = place_in_arena(requests);
        ASSERT_EQ(placed.offsets.size(), requests.size());
        for (size_t a = 0; a < requests.size(); ++a) {
            EXPECT_EQ(placed.offsets[a] % 256, 0);
            EXPECT_LE(placed.offsets[a] + requests[a].bytes, placed.bytes);
            for (size_t b = 0; b < a; ++b)
                EXPECT_TRUE(!meet(requests[a], requests[b]) || requests[a].bytes == 0 || requests[b].bytes == 0 ||
                            placed.offsets[a] + requests[a].bytes <= placed.offsets[b] ||
                            placed.offsets[b] + requests[b].bytes <= placed.offsets[a])
                    << a << " and " << b;
        }
        EXPECT_GE(placed.bytes, placed.most_alive);
        EXPECT_LE(placed.bytes, 2 * placed.most_alive);  // never seen above 1.5
    }
}

/// A chain, each made of the one before: two of them live at a time.
TEST(PlaceInArena, ReusesWhatIsDoneWith) {
    std::vector<ArenaRequest> chain;
    for (int k = 0; k < 10; ++k) chain.push_back({1024, k, k + 1});
    EXPECT_EQ(place_in_arena(chain).bytes, 2048);
    EXPECT_EQ(place_in_arena(chain).most_alive, 2048);
    EXPECT_EQ(place_in_arena({}).bytes, 0);
}

}  // namespace
}  // namespace tw

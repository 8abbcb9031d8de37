// The model of shared memory's banks against cycles measured on an H200 (1.98 GHz, 32 warps of one block a
// multiprocessor, loads of 4, 8 and 16 bytes a lane; 1.03, 1.29 and 2.23 cycles are the least).
#include "codegen/tile_passes/simulate_banks.h"

#include <functional>

#include <gtest/gtest.h>

namespace tw::codegen {
namespace {

struct Pattern {
    const char* name;
    std::function<int64_t(int lane, int words)> word;  // where a lane's access starts
    int measured[3];                                   // wavefronts of 1, 2, 4 words a lane
};

const Pattern patterns[] = {
    {"neighbours", [](int l, int w) { return l * w; }, {1, 2, 4}},
    {"same", [](int, int) { return 0; }, {1, 1, 2}},
    {"two rows", [](int l, int) { return l / 16 * 8; }, {1, 1, 2}},
    {"four rows", [](int l, int) { return l / 8 * 8; }, {1, 1, 2}},
    {"eight rows", [](int l, int) { return l / 4 * 8; }, {2, 2, 2}},
    {"pairs", [](int l, int w) { return l / 2 * w; }, {1, 1, 2}},
    {"sixteen, twice", [](int l, int w) { return l % 16 * w; }, {1, 2, 4}},
    {"sixteen apart, twice", [](int l, int) { return l % 16 * 8; }, {4, 8, 8}},
    {"eight, four times", [](int l, int w) { return l % 8 * w; }, {1, 2, 4}},
    {"eight apart, four times", [](int l, int) { return l % 8 * 8; }, {2, 4, 8}},
    {"two, in turn", [](int l, int w) { return l % 2 * w; }, {1, 1, 2}},
    {"stride 8", [](int l, int) { return l * 8; }, {8, 8, 8}},
    {"stride 32", [](int l, int) { return l * 32; }, {32, 32, 32}},
};

TEST(SimulateBanks, AgreesWithTheHardware) {
    for (const Pattern& pattern : patterns)
        for (int k = 0; k < 3; ++k) {
            int words = 1 << k;
            std::vector<int64_t> starts;
            for (int lane = 0; lane < 32; ++lane) starts.push_back(pattern.word(lane, words) * 4);
            EXPECT_EQ(wavefronts(starts, words * 4, target("sm_90a")), pattern.measured[k])
                << pattern.name << ", " << words;
        }
}

}  // namespace
}  // namespace tw::codegen

// Lowering a schedule again gives the same text, wherever its nodes lie in memory: caches of compiled kernels go by it.
#include <gtest/gtest.h>

#include "ops/program.h"
#include "schedules/catalog.h"

namespace tw {
namespace {

TEST(EqualText, OfEveryKernelInTheCatalog) {
    for (const schedules::CatalogEntry& entry : schedules::catalog()) {
        std::vector<Schedule> alive;  // so that the next ones get other addresses
        std::string first;
        for (int repeat = 0; repeat < 4; ++repeat) {
            alive.push_back(entry.make(target("sm_90a")));
            std::string text = build(alive.back()).cuda();
            if (repeat == 0) first = text;
            ASSERT_EQ(text, first) << entry.name << ", lowered " << repeat + 1 << " times";
        }
    }
}

}  // namespace
}  // namespace tw

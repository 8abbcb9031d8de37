// How many blocks a multiprocessor has room for: what is printed, what is refused, and that results are the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/check.h"
#include "ops/executable.h"
#include "tests/ops/plain_product.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// c = a b' in tiles of 64 rows a warpgroup and some columns, copies by a role of their own.
struct Tiles {
    int warpgroups = 1, stages = 2, registers = 0;
    int64_t columns = 64;
    int blocks = 0;  ///< persistent
};
Schedule product(const Tiles& tiles, int blocks) {
    auto [a, b, c] = bf16_product(128, 256, 128);
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, it] = s.split(i, 64 * tiles.warpgroups, Tail::Mask);
    auto [bj, nj] = s.split(j, tiles.columns);
    auto [wi, mi] = s.split(it, 64);
    auto [ko, ki] = s.split(s.reduce(c), 64);
    s.order({bi, bj, wi, ko, mi, nj, ki});
    if (tiles.blocks > 0)
        s.persistent({bi, bj}, {.blocks = tiles.blocks});
    else
        s.bind(s.fuse(bi, bj), grid.x);
    s.bind(wi, warpgroup);
    const Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, ko);
    s.mma(c, wgmma, {.m = mi, .n = nj, .k = ki});
    s.pipeline(ko, {.stages = tiles.stages, .in_flight = 1});
    s.roles({{"load", warps(1), registers(tiles.registers ? 24 : 0), {as, bs}},
             {"math", warpgroups(tiles.warpgroups), registers(tiles.registers), {c}}});
    s.occupancy(c, blocks);
    return s;
}

TEST(Occupancy, IsPrintedAndExplained) {
    const Program program = build(product({}, 2));
    EXPECT_THAT(program.cuda(), HasSubstr("__launch_bounds__(256, 2)"));
    EXPECT_THAT(
        program.explain(),
        AllOf(HasSubstr("c: 2 blocks a multiprocessor: 256 threads each, of at most 128 registers, and 33792 bytes"),
              Not(HasSubstr("persistent blocks, but"))));
    EXPECT_THAT(product({}, 2).to_string(), HasSubstr("kernel c  (2 blocks a multiprocessor)"));
    EXPECT_THAT(build(product({}, 1)).cuda(), HasSubstr("__launch_bounds__(256, 1)"));
    EXPECT_THAT(build(product({}, 1)).explain(), Not(HasSubstr("a multiprocessor:")));
}

TEST(Occupancy, IsSavedAndHoldsForTheKernelOfAStage) {
    Schedule s = product({}, 3);
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.occupancy(c, 3);"));
    const Schedule again = replay(s.save(), s.outputs(), s.target());
    EXPECT_EQ(again.to_string(), s.to_string());
    EXPECT_EQ(build(again).cuda(), build(s).cuda());
    s.occupancy(s.all_stages()[0], 2);  // a copy within the kernel: what was said last holds
    EXPECT_THAT(build(s).cuda(), HasSubstr("__launch_bounds__(256, 2)"));
}

TEST(Occupancy, TellsPersistentBlocksHowManyThereCouldBe) {
    EXPECT_THAT(build(product({.blocks = 132}, 2)).explain(),
                HasSubstr("c: 132 persistent blocks, but there is room for 264: give persistent {.blocks = 264}"));
    EXPECT_THAT(build(product({.blocks = 264}, 2)).explain(), Not(HasSubstr("persistent blocks, but")));
}

TEST(Occupancy, RefusesWhatAMultiprocessorHasNoRoomFor) {
    EXPECT_ERROR(product({}, 33), "occupancy: 33 blocks; a multiprocessor of sm_90a runs 1 to 32 at a time");
    EXPECT_ERROR(product({}, 0), "occupancy: 0 blocks; a multiprocessor of sm_90a runs 1 to 32 at a time");
    EXPECT_ERROR(build(product({}, 9)),
                 "occupancy: 9 blocks of 'c' a multiprocessor: of 256 threads each they have 2304, a multiprocessor of "
                 "sm_90a has 2048; ask for 8");
    EXPECT_ERROR(build(product({.stages = 5}, 3)),
                 "occupancy: 3 blocks of 'c' a multiprocessor: of 83968 bytes of shared memory each, 1024 of them the "
                 "driver's, they take 251904, a multiprocessor of sm_90a has 233472; use smaller tiles or fewer "
                 "stages, or ask for 2");
    EXPECT_ERROR(build(product({.registers = 240}, 2)),
                 "roles give 128 x 240 + 128 x 24 = 33792 registers, but 256 threads start with 128 each, 32768 "
                 "together; give them fewer");
    EXPECT_ERROR(build(product({.columns = 256}, 2)),
                 "each thread has 128 registers, but the sums 'c_sum' take 128 and other values at least 24; use "
                 "smaller tiles or more warps");
}

class OccupancyOnDevices : public RandomCases {
protected:
    OccupancyOnDevices() : RandomCases(31) {}
};
TW_ON_EACH_DEVICE(OccupancyOnDevices);

/// Roles move registers from what the launch bounds leave them: 128 of each of 256 threads, two blocks.
TEST_P(OccupancyOnDevices, LeavesResultsAsTheyAre) {
    if (!device_target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    for (const Tiles& tiles : {Tiles{}, Tiles{.registers = 208}, Tiles{.registers = 104, .blocks = 4}}) {
        Schedule s = product(tiles, 2);
        EXPECT_THAT(build(s).cuda(), HasSubstr("__launch_bounds__(256, 2)"));
        if (tiles.registers > 0) {
            EXPECT_THAT(build(s).cuda(),
                        HasSubstr(tiles.registers > 128 ? "setmaxnreg_inc<208>" : "setmaxnreg_dec<104>"));
        }
        expect_compiles(build(s));
        expect_declared(s, whole_numbers(s.outputs(), 7));
    }
}

}  // namespace
}  // namespace tw

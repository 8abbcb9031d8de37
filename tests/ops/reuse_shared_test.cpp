// Arrays of shared memory that are never needed at once take turns at the same bytes, where they do not fit side by
// side.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include "codegen/lower.h"
#include "ops/kernel_pictures.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/random_chain.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;
using testing::Not;

class ReusedMemory : public RandomCases {
protected:
    ReusedMemory() : RandomCases(53) {}

    /// Builds it where arrays do not fit side by side; nothing if they cannot take turns.
    template <class Make>
    std::optional<Schedule> crowded(const Make& make) const {
        const Schedule apart = make(device_target());
        EXPECT_THAT(build(apart).cuda(), Not(HasSubstr("union {")));
        try {
            const Schedule s = without_room(make, device_target());
            EXPECT_LT(shared_bytes_of(s), shared_bytes_of(apart));
            EXPECT_THAT(build(s).explain(), HasSubstr("the same shared memory"));
            return s;
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr("use smaller tiles or fewer staged operands"));
            return {};
        }
    }
};
TW_ON_EACH_DEVICE(ReusedMemory);

TEST_P(ReusedMemory, OfChainsOfStages) {
    int shared = 0;
    constexpr int rounds = 24;
    for (int round = 0; round < rounds; ++round) {
        const auto seed = static_cast<unsigned>(between(0, 10000));
        const RandomChain chain(seed);
        auto make = [&](const Target& target) { return chain.schedule(target); };
        const std::optional<Schedule> s = crowded(make);
        if (!s) continue;
        ++shared;
        SCOPED_TRACE(fmt::format("seed {}\n{}", seed, s->trace_as_cpp()));
        expect_declared(*s, whole_numbers({chain.output()}, seed));
    }
    EXPECT_GE(shared, rounds * 2 / 3);
}

/// y = (x w) v, of rows whose first product stays in shared memory. Tiles of w, and then of v, arrive ahead.
Schedule chained_products(const Target& target, int stages) {
    const Tensor x = input("x", f32, {48, 64}), w = input("w", f32, {64, 32}), v = input("v", f32, {32, 64});
    const Axis k = reduce_axis("k", 64), r = reduce_axis("r", 32);
    const Tensor h = compute("h", {48, 32}, [&](Expr i, Expr j) { return sum(x(i, k) * w(k, j), k); });
    const Tensor y = compute("y", {48, 64}, [&](Expr i, Expr j) { return sum(h(i, r) * v(r, j), r); });
    Schedule s({y}, target);
    auto product = [&](const Tensor& result, Loop rows, Loop columns, const std::vector<Loop>& around) {
        auto [warps, row] = s.split(rows, 4);
        auto [step, term] = s.split(s.reduce(result), 8);
        std::vector<Loop> order = around;
        order.insert(order.end(), {warps, columns, step, row, term});
        s.order(order);
        s.bind(warps, thread);
        s.bind(columns, thread);
        return step;
    };
    auto [i, j] = s.loops<2>(y);
    auto [block, rows] = s.split(i, 16, {"block", "rows"});
    const Loop second = product(y, rows, j, {block});
    s.bind(block, grid.x);
    s.at(h, block);
    s.set_memory(h, Memory::Shared);
    auto [hi, hj] = s.loops<2>(h);
    const Loop first = product(h, hi, hj, {});
    s.stage(h, x, Memory::Shared, first);
    s.stage(h, w, Memory::Shared, first);
    s.stage(y, v, Memory::Shared, second);
    s.pipeline(first, {.stages = stages});
    s.pipeline(second, {.stages = stages});
    return s;
}

TEST_P(ReusedMemory, OfTilesThatArriveAhead) {
    for (int stages : {2, 4}) {
        const std::optional<Schedule> s =
            crowded([&](const Target& target) { return chained_products(target, stages); });
        ASSERT_TRUE(s);
        const Program program = build(*s);
        SCOPED_TRACE(program.cuda());
        EXPECT_THAT(program.explain(), HasSubstr("in turn with v_shared"));
        expect_declared(*s, whole_numbers(s->outputs(), static_cast<unsigned>(stages)));
    }
}

TEST(ReusedMemoryText, SaysWhatTakesTurns) {
    const Schedule s = without_room([](const Target& target) { return chained_products(target, 2); }, target("sm_90a"));
    const std::string arrays = shared_memory_picture(kernels_before_printing(s.tree(), s.target())[0]);
    EXPECT_THAT(arrays, HasSubstr("the same bytes: "));
    EXPECT_THAT(arrays, HasSubstr(" in turn with v_shared\n"));
    EXPECT_ERROR(build(chained_products(with_room(s.target(), 2048), 2)), " in turn with v_shared), a block of sm_90a");
}

TEST(ReusedMemoryText, LimitsCountWhatAlignmentLeavesFree) {
    const Tensor x = input("x", f32, {4, 3}),
                 h = compute("h", {4, 3}, [&](Expr i, Expr j) { return x(i, 2 - j) + 1.0; }),
                 y = compute("y", {4, 3}, [&](Expr i, Expr j) { return h(i, 2 - j) + 1.0; });
    Schedule s({y}, with_room(target("sm_90a"), 12));
    auto [i, j] = s.loops<2>(y);
    s.bind(i, grid.x);
    s.bind(j, thread);
    s.at(h, i);
    s.set_memory(h, Memory::Shared);
    EXPECT_ERROR(build(s), "shared memory of 16 bytes (h 12), a block of sm_90a has at most 12");
}

// Eight blocks of a multiprocessor have 28160 bytes each.
TEST(ReusedMemoryText, WhatOccupancyLeavesIsRoom) {
    Schedule s = chained_products(target("sm_90a"), 8);
    EXPECT_GT(shared_bytes_of(s), 28160);
    s.occupancy(s.outputs()[0], 8);
    EXPECT_LE(shared_bytes_of(s), 28160);
    EXPECT_THAT(build(s).explain(), HasSubstr("would be more than the 28160 that a block has"));
}

/// Sums of rows, tile by tile, each copied, mirrored and mirrored again in shared memory.
Schedule mirrored_tiles(const Target& target, int stages) {
    const Tensor x = input("x", f32, {4, 96});
    auto mirrored = [](const char* name, const Tensor& of) {
        return compute(name, {4, 96}, [&](Expr i, Expr j) { return of(i, j / 16 * 16 + 15 - j % 16) * 2.0; });
    };
    const Tensor once = mirrored("once", x), twice = mirrored("twice", once);
    const Axis r = reduce_axis("r", 96);
    const Tensor y = compute("y", {4}, [&](Expr i) { return sum(twice(i, r), r); });
    Schedule s({y}, target);
    const Loop i = s.loops<1>(y)[0];
    auto [tile, term] = s.split(s.reduce(y), 16, {"tile", "term"});
    s.order({tile, i, term});
    s.bind(i, thread);
    for (const Tensor& stage : {twice, once}) {
        s.at(stage, tile);
        s.set_memory(stage, Memory::Shared);
    }
    s.stage(once, x, Memory::Shared, tile);
    for (const Tensor& stage : {twice, once}) s.bind(s.data_loops(stage)[0], thread);
    if (stages > 1) s.pipeline(tile, {.stages = stages});
    return s;
}

// Of a tile that has been read, the bytes are free, unless another is on its way to them.
TEST_P(ReusedMemory, OfTilesInEachIteration) {
    const std::optional<Schedule> s = crowded([](const Target& target) { return mirrored_tiles(target, 1); });
    ASSERT_TRUE(s);
    EXPECT_THAT(build(*s).explain(), HasSubstr("x_shared in turn with twice"));
    expect_declared(*s, whole_numbers(s->outputs(), 3));
    for (int stages : {2, 3})
        EXPECT_FALSE(crowded([&](const Target& target) { return mirrored_tiles(target, stages); }));
}

/// Two results that leave through shared memory one behind the other, the first of them in pieces.
Schedule two_results(const Target& target, Copy how) {
    const Tensor x = input("x", f32, {32, 64});
    auto mirrored = [&](const char* name) {
        return compute(name, {32, 64}, [&](Expr i, Expr j) { return x(i, 63 - j) * 2.0; });
    };
    const Tensor first = mirrored("first"), second = mirrored("second");
    Schedule s({first, second}, target);
    auto [i, j] = s.loops<2>(first);
    auto [block, row] = s.split(i, 8, {"block", "row"});
    auto [piece, column] = s.split(j, 32, {"piece", "column"});
    s.order({block, piece, row, column});
    s.bind(block, grid.x);
    s.bind(column, thread);
    s.at(second, block);
    s.via(s.stage(first, Memory::Shared, piece), how);
    s.stage(second, Memory::Shared, block);
    return s;
}

/// Pieces of a result, each copied, mirrored and mirrored again in shared memory, from where it leaves.
Schedule mirrored_pieces(const Target& target, Copy how) {
    const Tensor x = input("x", f32, {8, 96});
    auto mirrored = [](const char* name, const Tensor& of) {
        return compute(name, {8, 96}, [&](Expr i, Expr j) { return of(i, j / 32 * 32 + 31 - j % 32) * 2.0; });
    };
    const Tensor once = mirrored("once", x), y = mirrored("y", once);
    Schedule s({y}, target);
    auto [i, j] = s.loops<2>(y);
    auto [piece, column] = s.split(j, 32, {"piece", "column"});
    s.order({piece, i, column});
    s.bind(column, thread);
    s.at(once, piece);
    s.set_memory(once, Memory::Shared);
    s.stage(once, x, Memory::Shared, piece);
    s.via(s.stage(y, Memory::Shared, piece), how);
    return s;
}

// Boxes that leave may read their tile until the kernel's end.
TEST_P(ReusedMemory, OfResultsThatHaveLeft) {
    const std::optional<Schedule> s = crowded([](const Target& target) { return two_results(target, Copy::Vector); });
    ASSERT_TRUE(s);
    EXPECT_THAT(build(*s).explain(), HasSubstr("first_shared in turn with second_shared"));
    expect_declared(*s, whole_numbers(s->outputs(), 3));
    const std::optional<Schedule> pieces =
        crowded([](const Target& target) { return mirrored_pieces(target, Copy::Vector); });
    ASSERT_TRUE(pieces);
    expect_declared(*pieces, whole_numbers(pieces->outputs(), 3));
    if (!device_target().has_tma) GTEST_SKIP() << "needs boxes";
    EXPECT_FALSE(crowded([](const Target& target) { return two_results(target, Copy::Tma); }));
    EXPECT_FALSE(crowded([](const Target& target) { return mirrored_pieces(target, Copy::Tma); }));
}

// The result of one tile leaves, whole or in pieces, through the bytes of the operands' stages.
TEST_P(ReusedMemory, OfProductsWithRoles) {
    for (const char* name :
         {"gemm_bf16_128x128x256_tb_tile128x128x64g2s3r", "gemm_bf16_200x64x160_ta_tile64x64x32g1s4r",
          "gemm_bf16_128x128x256_tb_bias_tile128x128x64g2s3rb",
          "convolution_bf16_2x9x10x16_16_3x2_pad1_tilehalo48b16s2t1"}) {
        const schedules::CatalogEntry* entry = schedules::find_library_kernel(name);
        ASSERT_NE(entry, nullptr) << name;
        const Target hopper = target("sm_90a");
        const Schedule s = without_room(entry->make, hopper);
        const Program program = build(s);
        SCOPED_TRACE(program.cuda());
        EXPECT_THAT(program.cuda(), HasSubstr("union {"));
        if (!device_target().has_wgmma) GTEST_SKIP() << "needs wgmma";
        expect_declared(s, whole_numbers(s.outputs(), 7));
    }
}

/// y = (x w') v', by warpgroups; one role loads all tiles, those of v as soon as it is done with the others.
Schedule chained_with_roles(const Target& target, Type result = bf16) {
    const Tensor x = input("x", bf16, {128, 128}), w = input("w", bf16, {64, 128}), v = input("v", bf16, {64, 64});
    auto product = [](const char* name, const Tensor& a, const Tensor& b, int64_t terms, Type type) {
        const Axis k = reduce_axis(std::string(name) + "_k", terms);
        return compute(name, {128, 64},
                       [&](Expr i, Expr j) { return cast(type, sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k)); });
    };
    const Tensor h = product("h", x, w, 128, bf16), y = product("y", h, v, 64, result);
    Schedule s({y}, target);
    auto multiply = [&](const Tensor& result, Loop rows, Loop columns, const std::vector<Loop>& around) {
        auto [group, m] = s.split(rows, 64);
        auto [step, k] = s.split(s.reduce(result), 32);
        std::vector<Loop> order = around;
        order.insert(order.end(), {group, step, m, columns, k});
        s.order(order);
        s.bind(group, warpgroup);
        s.mma(result, wgmma, {.m = m, .n = columns, .k = k});
        return step;
    };
    auto [i, j] = s.loops<2>(y);
    auto [block, rows] = s.split(i, 64, {"block", "rows"});
    const Loop second = multiply(y, rows, j, {block});
    s.bind(block, grid.x);
    s.at(h, block);
    s.set_memory(h, Memory::Shared);
    auto [hi, hj] = s.loops<2>(h);
    const Loop first = multiply(h, hi, hj, {});
    const Stage xs = s.stage(h, x, Memory::Shared, first), ws = s.stage(h, w, Memory::Shared, first),
                vs = s.stage(y, v, Memory::Shared, second);
    if (result == f32) s.stage(y, Memory::Shared, block);
    s.pipeline(first, {.stages = 4});
    s.pipeline(second, {.stages = 2});
    s.roles({{"load", warps(1), {}, {xs, ws, vs}}, {"math", warpgroups(1), {}, {y}}});
    return s;
}

// What the computing role makes lies where tiles were; what another role loads does not, which goes by other barriers.
TEST_P(ReusedMemory, OfChainedProductsWithRoles) {
    if (!device_target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    const std::optional<Schedule> s = crowded([](const Target& target) { return chained_with_roles(target); });
    ASSERT_TRUE(s);
    const Program program = build(*s);
    SCOPED_TRACE(program.cuda());
    EXPECT_THAT(program.explain(), HasSubstr("x_shared in turn with h"));
    EXPECT_THAT(program.explain(), Not(HasSubstr("in turn with v_shared")));
    expect_declared(*s, whole_numbers(s->outputs(), 11));
}

// Three arrays have the same bytes one after another, of which products read the first two.
TEST_P(ReusedMemory, OfThreeInTurn) {
    if (!device_target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    const std::optional<Schedule> s = crowded([](const Target& target) { return chained_with_roles(target, f32); });
    ASSERT_TRUE(s);
    expect_declared(*s, whole_numbers(s->outputs(), 13));
}

TEST_P(ReusedMemory, OfProductsWithoutRoles) {
    const char* name = "gemm_bf16_128x64x96_tb_tile64x64x32w32x32s3r";
    const schedules::CatalogEntry* entry = schedules::find_library_kernel(name);
    ASSERT_NE(entry, nullptr) << name;
    const std::optional<Schedule> s = crowded(entry->make);
    ASSERT_TRUE(s);
    expect_declared(*s, whole_numbers(s->outputs(), 7));
}

}  // namespace
}  // namespace tw

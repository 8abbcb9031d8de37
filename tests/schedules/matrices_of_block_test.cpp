// Small matrices of a batch, several a block.
#include <algorithm>
#include <random>

#include "ops/check.h"
#include "schedules/tensor_product.h"
#include "schedules/tensor_product_names.h"
#include "schedules/unit_product.h"
#include "schedules/warp_space.h"
#include "tests/ops/on_each_device.h"
#include "tests/schedules/integers_for.h"
#include "tests/support/expect_error.h"
#include "verify/random.h"

namespace tw::schedules {
namespace {

class SmallMatrices : public OnEachDevice {};
TW_ON_EACH_DEVICE(SmallMatrices);

/// Those of the space that have several matrices a block.
std::vector<TensorTiles> tiles_of_several(const TensorProductShape& shape, const Target& some) {
    std::vector<TensorTiles> space = warp_space(shape, some);
    std::erase_if(space, [](const TensorTiles& tiles) { return tiles.block_b == 1; });
    return space;
}

// Of any extents, types and layouts; the last block has fewer matrices than the others.
TEST_P(SmallMatrices, AreSummedByAnyOfTheirTiles) {
    fuzz::Random random(std::random_device{}());
    for (int round = 0; round < 14; ++round) {
        auto extent = [&] { return random.chance(0.5) ? 8 * random.between(1, 5) : random.between(1, 40); };
        TensorProductShape shape{.m = extent(),
                                 .n = extent(),
                                 .k = random.chance(0.8) ? extent() : random.between(65, 150),
                                 .batch = 4 * random.between(2, 4) - random.between(0, 1),
                                 .operand = std::array{bf16, f16, i8, e4m3, tf32, bf16, f16}[round % 7],
                                 .transpose_a = random.chance(0.5),
                                 .transpose_b = random.chance(0.5)};
        shape.result = shape.operand == i8 ? i32 : random.chance(0.3) ? f32 : bf16;
        shape.add_bias = shape.operand != i8 && random.chance(0.3);
        const std::vector<TensorTiles> space = tiles_of_several(shape, device_target());
        if (space.empty()) continue;  // copied element by element
        const TensorTiles tiles = random.pick(space);
        SCOPED_TRACE(fmt::format("{} x {} x {} x {} of {}, transposes {} {}, bias {}: {}", shape.batch, shape.m,
                                 shape.n, shape.k, name_of(shape.operand), shape.transpose_a, shape.transpose_b,
                                 shape.add_bias, tiling_text(tiles)));
        EXPECT_EQ(parse_tiling(tiling_text(tiles)), ProductTiling(tiles));
        Schedule s = tensor_product_schedule(declare_tensor_product(shape), tiles, device_target());
        expect_declared(s, integers_for(s.outputs(), 2), near(2));
    }
}

Expr wide(const Expr& e) { return cast(f32, e); }

// Heads, which lie between the rows of a sequence; diagonals of blocks; products of complex numbers; pairs of rows.
TEST_P(SmallMatrices, StandInTensorsOfAnyOrder) {
    Tensor q = input("q", bf16, {2, 20, 5, 32}), k = input("k", bf16, {2, 24, 5, 32});
    Axis d = reduce_axis("d", 32), r = reduce_axis("r", 16), e = reduce_axis("e", 32);
    Tensor heads = compute("heads", {2, 5, 20, 24}, [&](Expr n, Expr h, Expr i, Expr j) {
        return cast(bf16, tanh(sum(wide(q(n, i, h, d)) * wide(k(n, j, h, d)), d)));
    });
    Tensor x = input("x", bf16, {32 * 7, 16}), w = input("w", bf16, {7, 16, 40});
    Tensor blocks =
        compute("blocks", {32 * 7, 40}, [&](Expr i, Expr j) { return sum(wide(x(i, r)) * wide(w(i / 32, r, j)), r); });
    Tensor z = input("z", f16, {9, 27, 32}), re = input("re", f16, {9, 16, 32}), im = input("im", f16, {9, 16, 32});
    Tensor pairs = compute("pairs", {9, 27, 16}, [&](Expr n, Expr i, Expr j) {
        return cast(f16, sum(wide(z(n, i, e)) * wide(re(n, j, e)) - wide(z(n, i, e)) * wide(im(n, j, e)), e));
    });
    struct Case {
        Tensor c, a, b;
        std::vector<std::array<Tensor, 2>> more = {};
    };
    for (const Case& each : {Case{heads, q, k}, Case{blocks, x, w}, Case{pairs, z, re, {{z, im}}}})
        for (const auto& [together, own] : {std::pair{4, 2}, {3, 1}}) {
            Schedule s({each.c}, device_target());
            const TensorTiles tiles{.block_m = 32,
                                    .block_n = 48,
                                    .block_k = 16,
                                    .warp_m = 32,
                                    .warp_n = 48,
                                    .block_b = together,
                                    .warp_b = own,
                                    .stages = own == 2 ? 1 : 2,
                                    .stage_result = own == 1};
            schedule_tensor_product(
                s,
                {.a = each.a, .b = each.b, .bias = {}, .c = each.c, .left = each.a, .right = each.b, .more = each.more},
                tiles);
            SCOPED_TRACE(s.trace_as_cpp());
            expect_declared(s, integers_for({each.c}, 1), near(2));
        }
}

// Where a block for each would begin more often than it computes. Large matrices, and few, fill blocks.
TEST(SmallMatricesByTheModel, ShareBlocksWhereTheyAreMany) {
    auto together = [](const TensorProductShape& shape) {
        const ProductTiling tiling = best_tiling(shape, target("sm_90a"));
        const TensorTiles* tiles = std::get_if<TensorTiles>(&tiling);
        return tiles ? tiles->block_b : 1;
    };
    EXPECT_GT(together({.m = 16, .n = 16, .k = 16, .batch = 65536}), 8);
    EXPECT_GT(together({.m = 27, .n = 27, .k = 64, .batch = 65536, .transpose_b = true}), 1);
    EXPECT_EQ(together({.m = 27, .n = 27, .k = 27, .batch = 65536}), 1);  // copied element by element
    EXPECT_GT(together({.m = 32, .n = 32, .k = 32, .batch = 65536, .operand = i8, .result = i32}), 1);
    EXPECT_EQ(together({.m = 16, .n = 16, .k = 16}), 1);
    EXPECT_EQ(together({.m = 64, .n = 64, .k = 4096, .batch = 64}), 1);
    EXPECT_EQ(together({.m = 1024, .n = 1024, .k = 64, .batch = 64}), 1);
}

// A block that takes some of each of two dimensions would have to look for both.
TEST(SmallMatricesByTheModel, AreNeighboursOfOneDimension) {
    auto together = [](int64_t sequences, int64_t heads) {
        Tensor q = input("q", bf16, {sequences, 32, heads, 32}), k = input("k", bf16, {sequences, 32, heads, 32});
        Axis d = reduce_axis("d", 32);
        Tensor c = compute("c", {sequences, heads, 32, 32}, [&](Expr n, Expr h, Expr i, Expr j) {
            return cast(bf16, sum(wide(q(n, i, h, d)) * wide(k(n, j, h, d)), d));
        });
        const ProductTiling tiling = tilings_of(unit_product(c).value(), target("sm_90a"))[0];
        const TensorTiles* tiles = std::get_if<TensorTiles>(&tiling);
        return tiles ? tiles->block_b : 1;
    };
    EXPECT_GT(together(8192, 8), 1);
    EXPECT_EQ(8 % together(8192, 8), 0);
    EXPECT_EQ(together(65536, 1), 1);
    EXPECT_GT(together(1, 65536), 1);
}

TEST(SmallMatricesOfBlocks, AreRefusedWhereNothingIsNextToThem) {
    const TensorTiles tiles{.block_m = 32, .block_n = 32, .block_k = 32, .warp_m = 32, .warp_n = 32, .block_b = 4};
    auto schedule = [&](const TensorProductShape& shape) {
        tensor_product_schedule(declare_tensor_product(shape), tiles, target("sm_90a"));
    };
    EXPECT_ERROR(schedule({.m = 32, .n = 32, .k = 32}),
                 "4 matrices a block (block_b) are neighbours of a batch, and leave as they are summed; 'c' has no "
                 "batch: use block_b = 1");
    EXPECT_ERROR(schedule({.m = 32, .n = 32, .k = 32, .batch = 8, .activation = Activation::SwiGlu}),
                 "'c' computes with sums in registers: use block_b = 1");
}

}  // namespace
}  // namespace tw::schedules

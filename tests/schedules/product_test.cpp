// f32 products on SIMT cores: any shape, any layout, any tiles; the tiles that the model takes; and their names.
#include <algorithm>
#include <cmath>
#include <random>

#include "ops/check.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "schedules/product_space.h"
#include "schedules/product_tiles.h"
#include "tests/ops/on_each_device.h"

namespace tw::schedules {
namespace {

struct Draw {
    explicit Draw(unsigned seed) : random(seed) {}
    int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); }
    bool chance() { return between(0, 1) == 1; }
    int64_t extent(double most) {
        return int64_t(std::exp2(std::uniform_real_distribution<>(0, std::log2(most))(random)));
    }

    ProductShape shape(double most, double most_terms) {
        ProductShape shape{.m = extent(most), .n = extent(most), .k = extent(most_terms)};
        shape.transpose_a = chance(), shape.transpose_b = chance(), shape.add_c = chance();
        return shape;
    }

    /// Of 32 threads at least, and any shape.
    ProductTiles tiles(int64_t terms) {
        ProductTiles tiles{.block_k = between(1, 20), .stages = int(between(1, 4)), .unroll_k = chance()};
        tiles.thread_m = between(0, 3) ? int64_t{1} << between(0, 3) : 12;
        tiles.thread_n = int64_t{1} << between(0, 3);
        tiles.block_m = tiles.thread_m * between(1, 13);
        tiles.block_n = tiles.thread_n * between(3, 12);
        tiles.split_k = between(0, 2) ? 1 : between(1, std::clamp<int64_t>(terms / tiles.block_k, 1, 40));
        tiles.blocks = int(between(1, 2));
        tiles.chunk_n = int64_t{1} << between(0, 2);
        return tiles;
    }

    std::mt19937 random;
};

std::string text_of(const ProductShape& s) {
    return fmt::format("{} x {} x {}{}{}{}", s.m, s.n, s.k, s.transpose_a ? " ta" : "", s.transpose_b ? " tb" : "",
                       s.add_c ? " ab" : "");
}

/// Whole numbers small enough for all sums to be exact, in any order.
Bindings whole_numbers(const Schedule& s, uint64_t seed) {
    Bindings bindings = random_bindings(s.outputs(), seed);
    for (auto& [name, array] : bindings.inputs) fill_integers(array, -4, 4, ++seed);
    for (auto& [name, value] : bindings.scalars) value = make_value(f32, static_cast<double>(++seed % 5) - 2);
    return bindings;
}

class Products : public OnEachDevice {};
TW_ON_EACH_DEVICE(Products);

TEST_P(Products, OfAnyShapeInAnyTiles) {
    Draw draw(17);
    for (int round = 0; round < 50; ++round) {
        const ProductShape shape = draw.shape(150, 300);
        const ProductTiles tiles = draw.tiles(shape.k);
        SCOPED_TRACE(text_of(shape) + " in " + tiling_text(tiles));
        Schedule s = product_schedule(declare_product(shape), device_target(), tiles);
        expect_declared(s, whole_numbers(s, round));
    }
}

// A few multiprocessors, which are filled by small products as many are by large ones.
TEST_P(Products, OfAnyShapeByTheModel) {
    Draw draw(18);
    for (int round = 0; round < 40; ++round) {
        const ProductShape shape = draw.shape(round % 2 ? 40 : 300, round % 2 ? 3000 : 200);
        Target some = device_target();
        some.multiprocessors = int(draw.between(1, 12));
        SCOPED_TRACE(text_of(shape) + " in " + tiling_text(product_tiles(shape, some)));
        Schedule s = product_schedule(declare_product(shape), some);
        expect_declared(s, whole_numbers(s, round));
    }
}

// Of one multiprocessor, to which small products are as long as large ones are to many.
TEST_P(Products, OfCopiedOperands) {
    Draw draw(24);
    int copied = 0;
    for (int round = 0; round < 8; ++round) {
        const ProductShape shape{.m = draw.between(180, 260),
                                 .n = draw.between(180, 260),
                                 .k = draw.between(250, 300),
                                 .transpose_a = draw.between(0, 1) == 0,
                                 .transpose_b = draw.between(0, 2) > 0,
                                 .add_c = draw.between(0, 1) == 0};
        Target some = device_target();
        some.multiprocessors = 1;
        SCOPED_TRACE(text_of(shape));
        Schedule s = product_schedule(declare_product(shape), some);
        copied += s.explain().find("reads copies, with a row for each term") != std::string::npos;
        expect_declared(s, whole_numbers(s, round));
    }
    EXPECT_GT(copied, 2);
}

// Sizes that are given at launch have no copies and no parts, whatever they are at most.
TEST(ProductTiles, OfNamedSizes) {
    const Target gpu = target("sm_90a");
    for (const int64_t most : {8192, 13000, 4000}) {
        const Expr m = size("m", {.min = 1, .max = most}), k = size("k", {.min = 1, .max = most});
        const Tensor a = input("a", f32, {m, 1024}), b = input("b", f32, {4096, 1024});
        const Tensor at = input("a", f32, {k, 2048}), bt = input("b", f32, {k, 256});
        const Axis x = reduce_axis("x", 1024), t = reduce_axis("t", k);
        for (const Tensor& c : {compute("c", {m, 4096}, [&](Expr i, Expr j) { return sum(a(i, x) * b(j, x), x); }),
                                compute("c", {4096, m}, [&](Expr i, Expr j) { return sum(b(i, x) * a(j, x), x); }),
                                compute("c", {2048, 256}, [&](Expr i, Expr j) { return sum(at(t, i) * bt(t, j), t); })})
            EXPECT_NO_THROW(build(choose_schedule({c}, gpu))) << most;
    }
}

// What the tuner may take: the blocks that are asked for fit, too.
TEST_P(Products, OfAnyShapeInTheSpace) {
    Draw draw(23);
    for (int round = 0; round < 14; ++round) {
        const ProductShape shape = draw.shape(200, round % 2 ? 600 : 20);
        const std::vector<ProductTiles> space = product_space(shape, device_target());
        const ProductTiles tiles = space[draw.between(0, int64_t(space.size()) - 1)];
        SCOPED_TRACE(text_of(shape) + " in " + tiling_text(tiles));
        Schedule s = product_schedule(declare_product(shape), device_target(), tiles);
        expect_declared(s, whole_numbers(s, round));
    }
}

// Shared tiles that lie partly outside of their tensor, of reductions that are no products: distances, and a maximum,
// of which zeros are no neutral terms.
TEST_P(Products, OtherReductionsSideBySide) {
    Draw draw(22);
    for (int round = 0; round < 16; ++round) {
        const int64_t m = draw.extent(70), n = draw.extent(70), terms = draw.extent(50);
        SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, terms));
        Tensor a = input("a", f32, {m, terms}), b = input("b", f32, {n, terms});
        Axis k = reduce_axis("k", terms);
        Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) {
            return round % 2 ? sum(abs(a(i, k) - b(j, k)), k) : reduce_max(a(i, k) + b(j, k), k);
        });
        Schedule s({c}, device_target());
        schedule_product(s, c, a, b, draw.tiles(1));
        expect_declared(s, whole_numbers(s, round));
    }
}

// What reads several terms of a row at once holds them until their turn: with many sums, shared memory has a row for
// each term instead, whatever is reduced. With few sums it need not.
TEST(ProductTiles, OfManySumsHoldNoTermsBack) {
    auto text_of_product = [](const char* tiling) {
        return build(product_schedule(declare_product({.m = 512, .n = 512, .k = 512}), target("sm_90a"),
                                      parse_product_tiles(tiling)))
            .cuda();
    };
    for (const char* many : {"128x256x16t8x16s2", "256x128x16t8x16s2", "128x256x16t16x8s2", "64x256x16t16x8s2b2",
                             "96x256x16t12x8s2", "128x128x16t8x8s2"})
        EXPECT_NE(text_of_product(many).find("a_shared_transposed["), std::string::npos) << many;
    EXPECT_EQ(text_of_product("128x128x16t4x4s2").find("a_shared_transposed["), std::string::npos);
    const Tensor a = input("a", f32, {512, 512}), b = input("b", f32, {512, 512});
    const Axis k = reduce_axis("k", 512);
    const Tensor paths = compute("paths", {512, 512}, [&](Expr i, Expr j) { return reduce_min(a(i, k) + b(k, j), k); });
    Schedule s({paths}, target("sm_90a"));
    schedule_product(s, paths, a, b, parse_product_tiles("128x256x16t8x16s2").value());
    EXPECT_NE(build(s).cuda().find("a_shared_transposed["), std::string::npos);
}

// No part of a long sum adds more than so many terms one by one, if blocks may share them.
TEST(ProductTiles, OfLongSumsHaveParts) {
    for (const int64_t k : {12288, 12289, 19456, 59764})
        for (const ProductTiles& tiles : product_space({.m = 1104, .n = 4912, .k = k}, target("sm_90a"))) {
            const bool fits_everywhere = tiles.thread_m * tiles.thread_n == 1;
            ASSERT_LE((k + tiles.split_k - 1) / tiles.split_k, fits_everywhere ? k : 12288) << tiling_text(tiles);
        }
}

TEST(ProductTiles, TextIsReadAgain) {
    Draw draw(19);
    for (int round = 0; round < 100; ++round) {
        ProductTiles tiles = draw.tiles(1000);
        tiles.unroll_k = true;
        const auto read = parse_product_tiles(tiling_text(tiles));
        ASSERT_TRUE(read);
        EXPECT_EQ(tiling_text(*read), tiling_text(tiles));
        EXPECT_TRUE(read->unroll_k);
    }
    EXPECT_EQ(tiling_text({.stages = 3, .split_k = 4}), "128x128x16t8x8s3p4");
    EXPECT_EQ(tiling_text({.blocks = 2, .chunk_n = 1}), "128x128x16t8x8c1s2b2");
    for (const char* text : {"", "128x128x16", "128x128x16t8x8", "128x128x16t3x8s2", "128x128x16t8x7s2",
                             "0x128x16t8x8s2", "128x128x16t8x8s2p", "128x128x16t8x8s2p0", "128x128x16t8x8s2b0",
                             "128x128x16t8x8c3s2", "512x512x16t8x8s2"})
        EXPECT_FALSE(parse_product_tiles(text)) << text;
    EXPECT_TRUE(find_library_kernel("product_5x7x9_ta_ab_tile16x16x4t1x1s2p2"));
    EXPECT_FALSE(find_library_kernel("product_5x7x9_ta_ab_tile16x16x4"));
}

// Of extents less than the tile, too: no term of a sum asks whether it is there.
TEST(ProductTiles, SumsAskForNothing) {
    Draw draw(20);
    for (int round = 0; round < 40; ++round) {
        ProductShape shape = draw.shape(200, 100);
        shape.k += 1;
        const ProductTiles tiles{
            .block_m = 64, .block_n = 64, .thread_m = 8, .thread_n = 4, .stages = int(draw.between(2, 4))};
        SCOPED_TRACE(text_of(shape));
        const std::string text = build(product_schedule(declare_product(shape), target("sm_90a"), tiles)).cuda();
        const size_t begin = text.find("for (int k_inner"), end = text.find("// ", begin);
        ASSERT_NE(begin, std::string::npos);
        EXPECT_EQ(text.substr(begin, end - begin).find("if ("), std::string::npos) << text;
    }
}

// They lie within the product but for a thread's part, and are what blocks can have; whatever it is bound by.
TEST(ProductTiles, OfTheModelFit) {
    Draw draw(21);
    const Target some = target("sm_90a");
    for (int round = 0; round < 300; ++round) {
        const ProductShape shape = draw.shape(65536, 65536);
        const ProductTiles tiles = product_tiles(shape, some);
        SCOPED_TRACE(text_of(shape) + " in " + tiling_text(tiles));
        EXPECT_TRUE(std::isfinite(seconds_of(tiles, shape, some)));
        EXPECT_TRUE(parse_product_tiles(tiling_text(tiles)));
        EXPECT_LT(tiles.block_m, std::max<int64_t>(shape.m + tiles.thread_m, 17));
        EXPECT_LT(tiles.block_n, std::max<int64_t>(shape.n + tiles.thread_n, 17));
        EXPECT_LE(tiles.block_k, shape.k);
    }
}

/// Loops of a copy that are touched already keep their extents, whatever its readers do later.
TEST(ProductTiles, CopiesStayAsTheyWereSplit) {
    const Tensor a = input("a", f32, {20, 64}), b = input("b", f32, {64, 40});
    const Axis k = reduce_axis("k", 64);
    const Tensor c = compute("c", {20, 40}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [block, row] = s.split(i, 32, Tail::Mask);
    auto [step, term] = s.split(s.reduce(c), 16);
    s.order({block, j, step, row, term});
    s.bind(block, grid.x);
    s.bind(j, thread);
    const Stage copy = s.stage(c, a, Memory::Shared, block);
    auto [of_rows, columns] = s.loops<2>(copy);
    s.bind(columns, thread);
    s.split(of_rows, 4);
    EXPECT_NO_THROW(s.unroll(row));
}

}  // namespace
}  // namespace tw::schedules

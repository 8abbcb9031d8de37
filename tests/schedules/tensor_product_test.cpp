// Products on tensor cores: tiles for every shape, results of types that not every target has.
#include <random>

#include "ops/check.h"
#include "schedules/catalog.h"
#include "schedules/tensor_product.h"
#include "schedules/tensor_product_names.h"
#include "schedules/tensor_product_space.h"
#include "tests/ops/on_each_device.h"
#include "tests/schedules/integers_for.h"
#include "verify/random.h"

namespace tw::schedules {
namespace {

Schedule scheduled(const TensorProductShape& shape, const ProductTiling& tiling, const Target& target) {
    return tensor_product_schedule(declare_tensor_product(shape), tiling, target);
}

TEST(TensorProduct, EveryShapeHasTilesThatFit) {
    constexpr int most_shared = 232448;  // bytes of a block on sm_90
    std::mt19937 random(3);
    auto extent = [&] { return int64_t(std::exp2(std::uniform_real_distribution<>(0, 14)(random))); };
    for (int round = 0; round < 40; ++round) {
        TensorProductShape shape{.m = extent(), .n = extent(), .k = extent()};
        shape.operand = shape.result = std::array{bf16, f16, i8, e4m3, tf32}[round % 5];
        if (bytes_of(shape.operand) != 2) shape.result = f32;
        shape.transpose_a = random() % 2, shape.transpose_b = random() % 2;
        TensorTiles tiles = tensor_tiles(shape, target("sm_90a"));
        SCOPED_TRACE(fmt::format("{} x {} x {}, {}", shape.m, shape.n, shape.k, name_of(shape.operand)));
        Program program = build(scheduled(shape, tiles, target("sm_90a")));
        EXPECT_EQ(program.kernels().size(), tiles.split_k > 1 ? 2u : 1u);
        EXPECT_LE(program.kernels()[0].shared_bytes, most_shared);
        EXPECT_LE(program.kernels()[0].threads, 256);
        const ProductTiling tiling = best_tiling(shape, target("sm_90a"));
        Program best = build(scheduled(shape, tiling, target("sm_90a")));
        EXPECT_LE(best.kernels()[0].shared_bytes, most_shared);
        bool by_warpgroups = best.cuda().find("tw::wgmma_m64") != std::string::npos;
        EXPECT_EQ(by_warpgroups, std::holds_alternative<WarpgroupTiles>(tiling));
        EXPECT_TRUE(!by_warpgroups || takes_warpgroups(shape, target("sm_90a")));
        EXPECT_FALSE(takes_warpgroups(shape, target("sm_80")));
    }
}

// Many tiles fill a GPU by themselves; few tiles of long sums need parts.
TEST(TensorProduct, LongSumsOfFewResultsAreSplit) {
    EXPECT_EQ(tensor_tiles({.m = 8192, .n = 8192, .k = 8192}, target("sm_90a")).split_k, 1);
    EXPECT_GT(tensor_tiles({.m = 128, .n = 128, .k = 65536}, target("sm_90a")).split_k, 1);
    EXPECT_EQ(tensor_tiles({.m = 1, .n = 8192, .k = 8192}, target("sm_90a")).block_m, 16);
}

// Few results of long sums, which blocks would share if they could.
TEST(TensorProduct, SumsThatBlocksCannotShareAreNotSplit) {
    TensorProductShape lower{.m = 16, .n = 96, .k = 4096, .transpose_b = true, .row_terms = RowTerms::Lower};
    TensorProductShape masked{
        .m = 16, .n = 96, .k = 4096, .batch = 1, .transpose_b = true, .row_terms = RowTerms::Masked};
    for (const TensorProductShape& shape : {lower, masked})
        for (const char* arch : {"sm_80", "sm_90a"}) {
            ProductTiling tiling = best_tiling(shape, target(arch));
            EXPECT_EQ(std::visit([](const auto& tiles) { return tiles.split_k; }, tiling), 1);
            EXPECT_NO_THROW(build(tensor_product_schedule(declare_tensor_product(shape), tiling, target(arch))));
        }
}

// Rows of copies, where all rows along an extent are, are whole sectors: boxes of others are loaded slowly.
TEST(TensorProduct, CopiedRowsAreWholeSectors) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(seed);
    fuzz::Random random(seed);
    int64_t copies = 0, shared = 0;
    for (int round = 0; round < 200; ++round) {
        TensorProductShape shape{.m = random.between(1, 500),
                                 .n = random.between(1, 500),
                                 .k = random.between(1, 500),
                                 .operand = random.pick(std::vector<Type>{bf16, f16, tf32, i8, e4m3}),
                                 .transpose_a = random.chance(0.5),
                                 .transpose_b = random.chance(0.5),
                                 .copy_operands = true};
        SCOPED_TRACE(fmt::format("{} x {} x {} of {}", shape.m, shape.n, shape.k, name_of(shape.operand)));
        const TensorProduct product = declare_tensor_product(shape);
        auto bytes_of_row = [&](const Tensor& matrix) {
            return require_constant(matrix.shape().back()) * bytes_of(matrix.type());
        };
        const TensorProductShape read = with_read_transposes(shape);
        const bool both_along_terms = !read.transpose_a && read.transpose_b;
        for (const auto& [own, as_read, other, other_as_read] :
             {std::tuple(product.a, product.left, product.b, product.right),
              std::tuple(product.b, product.right, product.a, product.left)}) {
            EXPECT_EQ(bytes_of_row(as_read) % piece_bytes, 0);
            if (own.same(as_read) || bytes_of_row(own) == bytes_of_row(as_read))
                continue;  // or has rows below the last
            ++copies;
            if (both_along_terms && other.same(other_as_read))
                ++shared;  // whose rows are as long as those, where they lie
            else
                EXPECT_EQ(bytes_of_row(as_read) % sector_bytes, 0);
        }
    }
    EXPECT_GT(copies, 100);
    EXPECT_GT(shared, 0);
}

// No sum of fp8 in the unit is longer than it is exact: not of small sides, not in parts, in no tiling that is tried.
TEST(TensorProduct, SumsOfFp8AreExact) {
    constexpr int64_t most = 1024;
    fuzz::Random random(7);
    int64_t promoted = 0, parts = 0;
    for (int round = 0; round < 60; ++round) {
        TensorProductShape shape{.m = int64_t{1} << random.between(0, 13),
                                 .n = int64_t{16} << random.between(0, 9),
                                 .k = 16 * random.between(1, 4000),
                                 .operand = random.pick(std::vector<Type>{e4m3, e5m2}),
                                 .transpose_b = true};
        std::vector<ProductTiling> tilings{best_tiling(shape, target("sm_90a"))};
        if (round % 6 == 0)
            for (const ProductTiling& each : tensor_product_space(shape, target("sm_90a"))) tilings.push_back(each);
        for (const ProductTiling& tiling : tilings) {
            const auto* tiles = std::get_if<WarpgroupTiles>(&tiling);
            if (!tiles) continue;
            const int64_t steps = (shape.k + tiles->block_k - 1) / tiles->block_k,
                          of_part = (steps + tiles->split_k - 1) / tiles->split_k * tiles->block_k;
            const int64_t together = tiles->promotion_interval ? tiles->promotion_interval : std::min(of_part, shape.k);
            EXPECT_LE(together, most) << fmt::format("{} x {} x {}: {}", shape.m, shape.n, shape.k,
                                                     tiling_text(tiling));
            if (const int64_t own = tiles->promotion_interval / tiles->block_k; own > 0) {
                auto steps_made = [&](int64_t each) { return (steps + each - 1) / each * each; };
                EXPECT_EQ(tiles->split_k, 1);
                EXPECT_GE(2 * tiles->promotion_interval, most);
                for (int64_t other = most / 2 / tiles->block_k; other <= most / tiles->block_k; ++other)
                    EXPECT_LE(steps_made(own), steps_made(other)) << tiling_text(tiling);
            }
            promoted += tiles->promotion_interval > 0;
            parts += tiles->split_k > 1 && shape.k > most;
        }
    }
    EXPECT_GT(promoted, 10);
    EXPECT_GT(parts, 0);
}

// 11 rows of blocks are too many for a cluster of two without one that is empty, which takes its time, too.
TEST(TensorProduct, EmptyBlocksOfClustersCount) {
    const TensorProductShape shape{
        .m = 11 * 128, .n = 3 * 192, .k = 4096, .operand = f16, .result = f32, .transpose_b = true};
    WarpgroupTiles tiles{.stage_result = false};
    tiles.split_k = 4;
    const double alone = predicted_cycles(tiles, shape, target("sm_90a"));
    tiles.cluster = 2;
    EXPECT_GT(predicted_cycles(tiles, shape, target("sm_90a")), 1.3 * alone);
}

class TensorProducts : public OnEachDevice {};
TW_ON_EACH_DEVICE(TensorProducts);

// Tiles of all forms, of shapes that none of them divides.
TEST_P(TensorProducts, ByWarpgroups) {
    std::mt19937 random(5);
    auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
    auto chance = [&] { return between(0, 1) == 1; };
    for (int round = 0; round < 12; ++round) {
        TensorProductShape shape{.m = 8 * between(1, 30), .n = 8 * between(1, 30), .k = 8 * between(1, 40)};
        shape.transpose_a = chance(), shape.transpose_b = chance();
        shape.add_bias = chance();
        shape.batch = chance() ? 2 : 0;
        shape.result = chance() ? bf16 : f32;
        if (round % 4 == 3) {
            shape.operand = std::array{e4m3, i8, tf32}[round / 4];
            if (shape.operand == i8) shape.result = i32, shape.add_bias = false;
            shape.transpose_a = false, shape.transpose_b = true;
            shape.k *= 2;
        }
        WarpgroupTiles tiles{
            .block_m = 64, .block_n = 16 * between(1, 5), .warpgroups = static_cast<int>(between(1, 2))};
        tiles.swap = chance() && !shape.transpose_a && shape.transpose_b;
        tiles.block_m *= tiles.warpgroups;
        if (tiles.swap) std::swap(tiles.block_m, tiles.block_n);
        if (shape.operand == tf32) tiles.block_k = 32;
        tiles.stages = static_cast<int>(between(2, 4));
        tiles.split_k = between(1, 3);
        if (tiles.split_k == 1 && chance()) tiles.promotion_interval = tiles.block_k * between(1, 2);
        tiles.stage_result = tiles.split_k == 1 && chance();
        tiles.store_boxes = tiles.stage_result && chance();
        tiles.raster_group = between(1, 4);
        Schedule s = scheduled(shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings bindings = random_bindings(s.outputs(), 3);
        uint64_t seed = round;
        for (auto& [name, array] : bindings.inputs) fill_integers(array, -4, 4, ++seed);
        expect_declared(s, bindings);
    }
}

// 11 rows of blocks make no groups, 4 columns do; pairs of 4 bytes of odd rows leave through shared memory.
TEST_P(TensorProducts, WalkByColumnsAndStoreOddRows) {
    const WarpgroupTiles by_columns{.block_m = 64, .block_n = 16, .warpgroups = 1, .stage_result = false};
    const WarpgroupTiles of_odd_rows{.block_m = 64, .block_n = 48, .block_k = 64, .warpgroups = 1, .stages = 2};
    const TensorProductShape walked{.m = 700, .n = 64, .k = 64, .transpose_b = true},
        odd{.m = 70, .n = 45, .k = 64, .operand = i8, .result = i32, .transpose_b = true};
    for (const auto& [shape, tiles] : {std::pair(walked, by_columns), std::pair(odd, of_odd_rows)}) {
        Schedule s = scheduled(shape, tiles, device_target());
        const bool is_walked = shape.m == walked.m;
        EXPECT_EQ(s.trace_as_cpp().find("group_n") != std::string::npos, is_walked) << s.trace_as_cpp();
        Bindings bindings = random_bindings(s.outputs(), 3);
        uint64_t seed = 1;
        for (auto& [name, array] : bindings.inputs) fill_integers(array, -4, 4, ++seed);
        expect_declared(s, bindings);
    }
}

TEST_P(TensorProducts, OfFp8AndAllAtOnce) {
    for (Type type : {e4m3, e5m2, bf16, tf32}) {
        TensorProductShape shape{
            .m = 37, .n = 21, .k = 90, .batch = 2, .operand = type, .transpose_b = true, .add_bias = true};
        TensorTiles tiles{
            .block_m = 32, .block_n = 16, .block_k = 32, .warp_m = 16, .warp_n = 8, .stages = 3, .split_k = 2};
        Schedule s = scheduled(shape, tiles, device_target());
        Bindings bindings = random_bindings(s.outputs(), 3);
        uint64_t seed = 1;
        for (auto& [name, array] : bindings.inputs) fill_integers(array, -4, 4, ++seed);
        expect_declared(s, bindings);
    }
}

// Of blocks of scales, which are steps of the sum, parts have whole ones, the last part fewer.
TEST_P(TensorProducts, ScaledSumsInParts) {
    TensorProductShape shape{.m = 40, .n = 200, .k = 128 * 11, .operand = e4m3, .transpose_b = true};
    shape.block_scales = true;
    const std::vector<ProductTiling> tilings{
        WarpgroupTiles{.block_m = 64, .block_n = 64, .block_k = 128, .warpgroups = 1, .stages = 4, .split_k = 3},
        WarpgroupTiles{
            .block_m = 40, .block_n = 64, .block_k = 128, .warpgroups = 1, .stages = 3, .split_k = 2, .swap = true},
        TensorTiles{
            .block_m = 32, .block_n = 64, .block_k = 64, .warp_m = 16, .warp_n = 32, .stages = 3, .split_k = 4}};
    for (const ProductTiling& tiling : tilings) {
        if (std::holds_alternative<WarpgroupTiles>(tiling) && !takes_warpgroups(shape, device_target())) continue;
        for (int64_t rows : {40, 39}) {
            shape.m = rows;
            Schedule s = scheduled(shape, tiling, device_target());
            Bindings bindings = random_bindings(s.outputs(), 3);
            uint64_t seed = 1;
            for (auto& [name, array] : bindings.inputs) fill_integers(array, -1, 1, ++seed);  // exact in any order
            expect_declared(s, bindings, bitwise);
        }
    }
    EXPECT_GT(
        std::get<WarpgroupTiles>(
            best_tiling({.m = 64, .n = 512, .k = 8192, .operand = e4m3, .transpose_b = true, .block_scales = true},
                        target("sm_90a")))
            .split_k,
        1);
}

// Only operands whose rows are no whole pieces are copied, and those of 8 and of 32 bits whose terms do not lie side by
// side; the other is read where it lies, with zeros for the terms that the copy has more. More parts than one thread
// sums at once.
TEST_P(TensorProducts, CopyWhatHasBrokenRows) {
    std::mt19937 random(13);
    auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
    for (int round = 0; round < 16; ++round) {
        TensorProductShape shape{
            .m = between(9, 90), .n = between(9, 90), .k = between(40, 400), .copy_operands = true};
        shape.operand = std::array{bf16, f16, tf32, i8}[round % 4];
        shape.result = shape.operand == i8 ? i32 : f32;
        shape.transpose_a = between(0, 1), shape.transpose_b = between(0, 1);
        if (between(0, 2) > 0) (shape.transpose_a ? shape.m : shape.k) = 16 * between(2, 5);
        const Target few = device_target();
        ProductTiling tiling = best_tiling(shape, few);
        const bool parts = round % 3 == 0;
        if (parts)
            tiling =
                TensorTiles{.block_m = 32, .block_n = 32, .block_k = 32, .warp_m = 16, .warp_n = 16, .split_k = 11};
        auto is_copied = [&](int64_t row, bool turned) {
            return row * bytes_of(shape.operand) % piece_bytes != 0 || (turned && bytes_of(shape.operand) != 2);
        };
        const size_t copies = is_copied(shape.transpose_a ? shape.m : shape.k, shape.transpose_a) +
                              is_copied(shape.transpose_b ? shape.k : shape.n, !shape.transpose_b);
        SCOPED_TRACE(fmt::format("{} x {} x {} of {}, transposes {} {}", shape.m, shape.n, shape.k,
                                 name_of(shape.operand), shape.transpose_a, shape.transpose_b));
        Schedule s = scheduled(shape, tiling, few);
        if (!parts) {
            EXPECT_EQ(build(s).kernels().size(), copies + 1);
        }
        expect_declared(s, integers_for(s.outputs(), 4));
    }
}

// Parts that leave out whole tiles, of longer rows of one operand.
TEST_P(TensorProducts, CopyWhatPartsReadInWholeTiles) {
    const TensorTiles warps{
        .block_m = 16, .block_n = 32, .block_k = 32, .warp_m = 16, .warp_n = 16, .stages = 3, .split_k = 2};
    const WarpgroupTiles warpgroups{
        .block_m = 64, .block_n = 64, .block_k = 32, .warpgroups = 1, .stages = 3, .split_k = 2, .stage_result = false};
    for (Type type : {bf16, tf32, i8})
        for (bool turned : {false, true}) {
            TensorProductShape shape{.m = 64, .n = 48, .k = 159, .operand = type, .result = type == i8 ? i32 : f32};
            shape.transpose_a = shape.transpose_b = turned;
            shape.copy_operands = true;
            for (const ProductTiling& tiling : {ProductTiling(warps), ProductTiling(warpgroups)}) {
                if (type != bf16 && std::holds_alternative<WarpgroupTiles>(tiling)) continue;
                SCOPED_TRACE(tiling_text(tiling));
                Schedule s = scheduled(shape, tiling, device_target());
                expect_declared(s, integers_for(s.outputs(), 4));
            }
        }
}

// Operands that wgmma takes only with their terms side by side, by its tiles and by those of warps, batches among them.
TEST_P(TensorProducts, TurnTermsToLieSideBySide) {
    fuzz::Random random(17);
    for (int round = 0; round < 12; ++round) {
        TensorProductShape shape{.m = 16 * random.between(1, 20),
                                 .n = 16 * random.between(1, 20),
                                 .k = random.between(30, 300),
                                 .copy_operands = true};
        if (random.chance(0.5)) shape.m += random.between(1, 15), shape.n += random.between(1, 15);
        shape.batch = random.chance(0.3) ? 3 : 0;
        shape.operand = std::array{i8, tf32, e4m3}[round % 3];
        shape.result = shape.operand == i8 ? i32 : f32;
        if (shape.operand == e4m3) shape.m += 256, shape.n += 256;  // sums of few terms want so many
        shape.transpose_a = random.chance(0.6), shape.transpose_b = shape.transpose_a && random.chance(0.5);
        SCOPED_TRACE(fmt::format("{} x {} x {} of {}, batch {}, transposes {} {}", shape.m, shape.n, shape.k,
                                 name_of(shape.operand), shape.batch, shape.transpose_a, shape.transpose_b));
        EXPECT_TRUE(takes_warpgroups(shape, device_target()));
        const ProductTiling tiling =
            random.chance(0.8) ? best_tiling(shape, device_target())
                               : ProductTiling(TensorTiles{.block_m = 32, .block_n = 32, .warp_m = 16, .warp_n = 16});
        Schedule s = scheduled(shape, tiling, device_target());
        shape.copy_operands = false;  // as the operands lie
        Executable executable(build(s), device_);
        expect_declared(executable, {declare_tensor_product(shape).c}, integers_for(s.outputs(), 2));
    }
}

// A copy that turns an operand pays where the product is long enough.
TEST(TensorProduct, TurnsTermsOfLargeProducts) {
    const TensorProductShape large{.m = 4096, .n = 4096, .k = 4096, .operand = e4m3, .transpose_a = true};
    EXPECT_TRUE(wants_copied_operands(large));
    auto with = [&](auto change) {
        TensorProductShape shape = large;
        change(shape);
        return wants_copied_operands(shape);
    };
    EXPECT_TRUE(with([](TensorProductShape& s) { s.operand = tf32; }));
    EXPECT_FALSE(with([](TensorProductShape& s) { s.operand = bf16; }));
    EXPECT_FALSE(with([](TensorProductShape& s) { s.transpose_a = false, s.transpose_b = true; }));
    EXPECT_FALSE(with([](TensorProductShape& s) { s.m = s.n = s.k = 256; }));
    EXPECT_FALSE(with([](TensorProductShape& s) { s.m = 64 * 4096, s.n = 8; }));  // 1 GB for eight columns
    EXPECT_TRUE(wants_copied_operands(
        {.m = 2, .n = 8384, .k = 12224, .operand = e4m3, .transpose_a = true, .transpose_b = true}));
}

// An operand that has a row for each term ends where its rows do, however the other one's are padded.
TEST(TensorProduct, ReadsWholeRowsWhereTheyLie) {
    for (const auto& [name, operand] : {std::pair{"gemm_bf16_2368x64x11006_ta_tb", "a"},
                                        {"gemm_bf16_4096x512x4095_ta_tb", "a"},
                                        {"gemm_bf16_4096x512x4095", "b"},
                                        {"gemm_bf16_128x4096x16383", "b"}}) {
        const std::string kernels = find_kernel(name)->make(target("sm_90a")).to_string();
        EXPECT_EQ(kernels.find(fmt::format("kernel {}_padded", operand)), kernels.npos) << name << kernels;
    }
}

// Rows that begin anywhere are worth a copy where they are read more than once.
TEST(TensorProduct, PadsWhatIsReadOften) {
    EXPECT_TRUE(wants_copied_operands({.m = 36192, .n = 192, .k = 33278}));  // pieces of 4 bytes
    EXPECT_TRUE(wants_copied_operands({.m = 64, .n = 1088, .k = 6065, .operand = tf32}));
    EXPECT_FALSE(wants_copied_operands({.m = 107, .n = 16640, .k = 10604, .transpose_b = true}));  // of 8 bytes, once
    EXPECT_FALSE(wants_copied_operands({.m = 36192, .n = 192, .k = 33280}));
    // 264 MB that are read once; 0.205 ms by copies, 0.115 by the peer.
    EXPECT_FALSE(wants_copied_operands(
        {.m = 41, .n = 2929, .k = 22541, .operand = tf32, .transpose_a = true, .transpose_b = true}));
    EXPECT_FALSE(wants_copied_operands({.m = 30000, .n = 8, .k = 30001}));
    EXPECT_TRUE(wants_copied_operands({.m = 28365,
                                       .n = 32,
                                       .k = 2240,
                                       .operand = i8,
                                       .result = i32,
                                       .transpose_a = true,
                                       .transpose_b = true}));  // 0.071 and 0.244
    EXPECT_TRUE(wants_copied_operands({.m = 9, .n = 2560, .k = 42304, .transpose_a = true, .transpose_b = true}));
    // 2.5 GB for 64 columns: 1.90 ms by copies, 1.10 without.
    EXPECT_FALSE(wants_copied_operands({.m = 30635, .n = 64, .k = 40576, .transpose_a = true, .transpose_b = true}));
    EXPECT_FALSE(wants_copied_operands({.m = 50, .n = 50, .k = 51}));
    EXPECT_TRUE(wants_copied_operands({.m = 2776, .n = 94, .k = 1818}));  // 0.0133 ms instead of 0.0229
    EXPECT_TRUE(wants_copied_operands({.m = 1000, .n = 150, .k = 2046, .transpose_b = true}));  // 0.0115 and 0.0173
}

// Rows of whole pieces, and terms that wgmma takes, cost no copies, and want none.
TEST(TensorProduct, CopiesNoWholeRows) {
    fuzz::Random random(29);
    int copied = 0;
    for (int round = 0; round < 200; ++round) {
        TensorProductShape shape{.m = random.between(1, 4000),
                                 .n = random.between(1, 4000),
                                 .k = random.between(1, 4000),
                                 .operand = std::array{bf16, f16, i8, e4m3, tf32}[round % 5],
                                 .transpose_a = random.chance(0.5),
                                 .transpose_b = random.chance(0.5)};
        for (int64_t* extent : {&shape.m, &shape.n, &shape.k})
            if (random.chance(0.7)) *extent = (*extent + 15) / 16 * 16;
        SCOPED_TRACE(fmt::format("{} x {} x {} of {}, transposes {} {}", shape.m, shape.n, shape.k,
                                 name_of(shape.operand), shape.transpose_a, shape.transpose_b));
        EXPECT_EQ(copy_cycles(shape), 0);
        const bool wants = wants_copied_operands(shape), is_taken = takes_warpgroups(shape, target("sm_90a"));
        EXPECT_FALSE(wants && is_taken);
        shape.copy_operands = true;
        EXPECT_EQ(copy_cycles(shape) > 0, !is_taken);
        copied += wants;
    }
    EXPECT_GT(copied, 20);
}

// By small tiles of warps, whose results lie side by side.
TEST_P(TensorProducts, OfFewTerms) {
    fuzz::Random random(23);
    for (int round = 0; round < 8; ++round) {
        TensorProductShape shape{.m = random.between(32, 150),
                                 .n = 16 * random.between(16, 24),
                                 .k = random.between(1, 16),
                                 .operand = random.chance(0.5) ? bf16 : f16,
                                 .result = random.chance(0.3) ? f32 : bf16,
                                 .transpose_a = random.chance(0.5),
                                 .transpose_b = random.chance(0.5),
                                 .add_bias = random.chance(0.5),
                                 .activation = random.chance(0.3) ? Activation::SwiGlu : Activation::None};
        SCOPED_TRACE(fmt::format("{} x {} x {}", shape.m, shape.n, shape.k));
        const ProductTiling tiling = best_tiling(shape, device_target());
        EXPECT_TRUE(std::holds_alternative<TensorTiles>(tiling));
        Schedule s = scheduled(shape, tiling, device_target());
        const bool is_exact = shape.activation == Activation::None;
        expect_declared(s, integers_for(s.outputs(), 2), is_exact ? bitwise : near(shape.result == f32 ? 100 : 1));
    }
}

// Gated columns are made of whole sums, by a kernel behind the one that adds their parts. Of some sums the gate is next
// to nothing.
TEST_P(TensorProducts, OfGatedColumnsHaveParts) {
    fuzz::Random random(29);
    for (int round = 0; round < 8; ++round) {
        TensorProductShape shape{.m = random.between(20, 70),
                                 .n = 16 * random.between(2, 6),
                                 .k = random.between(2900, 3600),
                                 .batch = random.between(0, 2),
                                 .operand = random.chance(0.5) ? bf16 : f16,
                                 .result = random.chance(0.3) ? f32 : bf16,
                                 .transpose_a = random.chance(0.5),
                                 .transpose_b = random.chance(0.5),
                                 .add_bias = random.chance(0.5),
                                 .activation = Activation::SwiGlu};
        shape.copy_operands = wants_copied_operands(shape);
        SCOPED_TRACE(fmt::format("{} x {} x {}", shape.m, shape.n, shape.k));
        const ProductTiling tiling = best_tiling(shape, device_target());
        EXPECT_GT(std::visit([](const auto& tiles) { return tiles.split_k; }, tiling), 1);
        Schedule s = scheduled(shape, tiling, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, integers_for(s.outputs(), 2), near(shape.result == f32 ? 100 : 1, 1e-20));
    }
}

// Gated products of fewer rows than an instruction has take warpgroups too, in every tile of the space.
TEST(TensorProduct, OfFewGatedRowsAreBuiltInAllTiles) {
    fuzz::Random random(31);
    for (const Type operand : {bf16, f16, tf32})
        for (const int64_t m : {random.between(1, 20), random.between(21, 63), random.between(65, 190)}) {
            TensorProductShape shape{.m = m,
                                     .n = 16 * random.between(4, 40),
                                     .k = 64 * random.between(4, 40),
                                     .operand = operand,
                                     .result = operand == tf32 ? f32 : bf16,
                                     .transpose_a = operand == tf32 || m % 8 == 0,
                                     .transpose_b = true,
                                     .add_bias = random.chance(0.5),
                                     .activation = Activation::SwiGlu};
            shape.copy_operands = wants_copied_operands(shape);
            EXPECT_TRUE(takes_warpgroups(shape, target("sm_90a"))) << m << name_of(operand);
            for (const ProductTiling& tiling : spread_tensor_product_space(shape, target("sm_90a"), 10))
                EXPECT_NO_THROW(build(scheduled(shape, tiling, target("sm_90a")))) << m << " " << tiling_text(tiling);
        }
}

// Pieces of 4 bytes of narrow elements come asynchronously, as many stages ahead as are asked for; those of f32 do not.
TEST_P(TensorProducts, RunAheadOfRowsInPiecesOfFourBytes) {
    const TensorTiles tiles{.block_m = 64, .block_n = 64, .block_k = 32, .warp_m = 32, .warp_n = 32, .stages = 4};
    for (Type type : {bf16, tf32}) {
        const TensorProductShape shape{
            .m = 70, .n = type == bf16 ? 94 : 93, .k = type == bf16 ? 118 : 119, .operand = type, .result = f32};
        Schedule s = scheduled(shape, tiles, device_target());
        const bool is_asynchronous = build(s).cuda().find("cp_async") != std::string::npos;
        EXPECT_EQ(is_asynchronous, type == bf16);
        expect_declared(s, integers_for(s.outputs(), 4));
    }
}

// The tiles that the model chooses where results are made of sums in registers, of any shape: fewer rows and columns
// than a tile has, a bias behind the sums, blocks of 128 terms.
TEST_P(TensorProducts, OfSumsInRegistersByTheModel) {
    std::mt19937 random(11);
    auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
    auto chance = [&] { return between(0, 1) == 1; };
    for (int round = 0; round < 24; ++round) {
        const int64_t m = chance() ? between(1, 20) : between(1, 200), n = chance() ? between(1, 20) : between(1, 200);
        TensorProductShape shape{.m = m, .n = n, .k = between(1, 200), .transpose_b = chance()};
        if (round % 2 == 0) {
            shape.n = (shape.n + 15) / 16 * 16;
            shape.activation = Activation::SwiGlu;
            shape.operand = std::array{bf16, f16, tf32, i8}[round / 2 % 4];
            shape.add_bias = chance() && shape.operand != i8;
            shape.transpose_a = chance();
            shape.batch = chance() ? 2 : 0;
            if (shape.operand == tf32 || chance()) shape.result = f32;
        } else {
            shape.k = 128 * between(1, 3);
            shape.transpose_b = shape.block_scales = true;
            shape.operand = e4m3;
        }
        shape.copy_operands = wants_copied_operands(shape);
        SCOPED_TRACE(fmt::format("{} x {} x {} of {}, batch {}, transposes {} {}, bias {}", shape.m, shape.n, shape.k,
                                 name_of(shape.operand), shape.batch, shape.transpose_a, shape.transpose_b,
                                 shape.add_bias));
        Schedule s = scheduled(shape, best_tiling(shape, device_target()), device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings bindings = random_bindings(s.outputs(), 3);
        uint64_t seed = round;
        for (auto& [name, array] : bindings.inputs) fill_integers(array, -1, 1, ++seed);
        expect_declared(s, bindings, shape.block_scales ? bitwise : near(shape.result == f32 ? 100 : 1));
    }
}

}  // namespace
}  // namespace tw::schedules

// Products of a matrix and few vectors: every layout, type, epilogue and number of parts, of rows that begin anywhere.
#include "schedules/thin_product.h"

#include "ops/check.h"
#include "schedules/choose.h"
#include "schedules/tensor_product_names.h"
#include "tests/ops/on_each_device.h"
#include "tests/schedules/integers_for.h"
#include "verify/random_product.h"

namespace tw::schedules {
namespace {

/// One side of at most eight rows or columns.
TensorProductShape random_thin(fuzz::Random& random) {
    TensorProductShape shape = fuzz::random_product(random, 7);
    shape.row_terms = RowTerms::All;
    (random.chance(0.5) ? shape.m : shape.n) = random.between(1, most_vectors);
    shape.k = random.chance(0.1) ? 1 : random.between(1, 600);
    shape.transpose_a = random.chance(0.5), shape.transpose_b = random.chance(0.5);
    if (is_float(shape.result))
        shape.activation = random.pick<Activation>({Activation::None, Activation::None, Activation::Gelu});
    return shape;
}

Schedule scheduled(const TensorProductShape& shape, const ProductTiling& tiling, const Target& target) {
    return tensor_product_schedule(declare_tensor_product(shape), tiling, target);
}

class ThinProducts : public OnEachDevice {};
TW_ON_EACH_DEVICE(ThinProducts);

// By the model's tiles on GPUs of few and of many multiprocessors, where threads share sums and blocks share their
// terms, and by any others.
TEST_P(ThinProducts, ComputeTheDeclaration) {
    fuzz::Random random(21);
    int parts = 0, shared = 0, aligned = 0;
    for (int round = 0; round < 40; ++round) {
        const TensorProductShape shape = random_thin(random);
        Target some = device_target();
        some.multiprocessors = random.pick<int>({1, 8, 132});
        ThinTiles tiles = thin_tiles(shape, some);
        if (random.chance(0.3)) tiles.split_k = random.between(2, 11);
        if (random.chance(0.3)) tiles.results = random.between(1, 5);
        if (random.chance(0.3)) tiles.terms = random.between(1, 9);
        tiles.align = random.chance(0.5);
        SCOPED_TRACE(fuzz::describe(shape, tiles));
        Schedule s = scheduled(shape, tiles, some);
        const Match match = shape.activation == Activation::None ? bitwise : near(4, 5e-7);  // of 1 + erf, near 0
        expect_declared(s, integers_for(s.outputs(), shape.operand == e4m3 ? 1 : 4), match);
        parts += tiles.split_k > 1;
        shared += tiles.threads_terms > 1;
        aligned += s.trace_as_cpp().find("s.align(") != std::string::npos;
    }
    EXPECT_GT(aligned, 5);
    EXPECT_GT(parts, 5);
    EXPECT_GT(shared, 10);
}

// Of users' own expressions, of f32 and of narrower types, the same threads.
TEST_P(ThinProducts, AreChosenForUsersExpressions) {
    fuzz::Random random(23);
    for (Type type : {f32, bf16, f16, i8, e4m3})
        for (int round = 0; round < 4; ++round) {
            const int64_t few = random.between(1, most_vectors), many = random.between(20, 90),
                          terms = random.between(1, 300), m = round % 2 ? few : many, n = round % 2 ? many : few;
            const bool turned_a = random.chance(0.5), turned_b = random.chance(0.5);
            Tensor a = input("a", type, turned_a ? Shape{terms, m} : Shape{m, terms}),
                   b = input("b", type, turned_b ? Shape{n, terms} : Shape{terms, n}), bias = input("bias", f32, {n});
            Axis k = reduce_axis("k", terms);
            Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) {
                auto as_sum = [&](const Expr& x) { return type == f32 ? x : cast(type == i8 ? i32 : f32, x); };
                Expr left = turned_a ? a(k, i) : a(i, k), right = turned_b ? b(j, k) : b(k, j);
                return max(cast(f32, sum(as_sum(left) * as_sum(right), k)) + bias(j), 0.0);
            });
            Schedule s = choose_schedule({y}, device_target());
            SCOPED_TRACE(s.trace_as_cpp());
            EXPECT_NE(s.trace_as_cpp().find("Memory::Registers"), std::string::npos);
            expect_declared(s, integers_for({y}, type == e4m3 ? 1 : 4));
        }
}

// Bytes that lie together leave memory 16 at once, where all rows begin at multiples of those.
TEST(ThinTiles, AreAsWideAsRowsAllow) {
    const Target h200 = target("sm_90a");
    auto text = [&](const TensorProductShape& shape) {
        return build(scheduled(shape, thin_tiles(shape, h200), h200)).cuda();
    };
    auto reads = [](const std::string& cuda, const char* array, int together) {
        return cuda.find(fmt::format("tw::load<{}>({}_registers", together, array)) != std::string::npos;
    };
    for (bool along : {false, true}) {
        const TensorProductShape bytes{
            .m = 4096, .n = 1, .k = 4096, .operand = i8, .result = i32, .transpose_a = along};
        EXPECT_TRUE(reads(text(bytes), "a", 16));
        const TensorProductShape halves{.m = 1, .n = 4100, .k = 4100, .transpose_b = along};
        EXPECT_TRUE(reads(text(halves), "b", 4));
    }
}

// Rows that begin anywhere are read in whole vectors, and threads have rows that begin alike: what they read of the
// vectors serves all of them.
TEST(ThinTiles, AreAlignedWhereRowsBeginAnywhere) {
    const Target h200 = target("sm_90a");
    for (const TensorProductShape& shape : {TensorProductShape{.m = 4100, .n = 1, .k = 4091},
                                            TensorProductShape{.m = 1, .n = 4100, .k = 4093, .transpose_b = true}}) {
        const ThinTiles tiles = thin_tiles(shape, h200);
        EXPECT_TRUE(tiles.align);
        const std::string cuda = build(scheduled(shape, tiles, h200)).cuda(), matrix = shape.m > 1 ? "a" : "b";
        EXPECT_NE(cuda.find(fmt::format("tw::load<8>({}_registers", matrix)), std::string::npos) << cuda;
        const std::string vector = fmt::format("bf16 {}_registers[8]", shape.m > 1 ? "b" : "a");
        EXPECT_NE(cuda.find(vector), std::string::npos) << cuda;
    }
    EXPECT_FALSE(thin_tiles(TensorProductShape{.m = 4100, .n = 1, .k = 4096}, h200).align);
}

// Sums of rows that are not there count for nothing: were they masked, each step's loads would wait for the last one's.
TEST(ThinTiles, MaskLoadsAndNotSums) {
    const TensorProductShape shape{.m = 4651, .n = 1, .k = 999};
    const ThinTiles tiles{.threads_long = 4, .threads_terms = 32, .results = 4, .terms = 8};
    const std::string cuda = build(scheduled(shape, tiles, target("sm_90a"))).cuda(),
                      sums = cuda.substr(0, cuda.find("combine the threads' parts"));
    EXPECT_NE(sums.find("+ i < 4651 ? a["), std::string::npos) << cuda;
    EXPECT_EQ(sums.find("result < 4651"), std::string::npos) << cuda;
}

// A block for each row would leave most of a GPU idle where there are few rows; long sums are shared then.
TEST(ThinTiles, FillTheGpu) {
    const Target h200 = target("sm_90a");
    for (bool along : {false, true})
        for (int64_t extent : {16, 500, 20000}) {
            const TensorProductShape long_sums{
                .m = extent, .n = 2, .k = (int64_t{1} << 28) / extent, .transpose_a = along};
            const ThinTiles t = thin_tiles(long_sums, h200);
            const int64_t blocks = (extent + t.threads_long * t.results - 1) / (t.threads_long * t.results) * t.split_k;
            EXPECT_GE(blocks * t.threads_long * t.threads_terms, 132 * 512) << tiling_text(t);
        }
}

// Neighbouring lanes read what lies side by side: columns of a stored transpose, or terms.
TEST(ThinTiles, HaveNeighboursReadTogether) {
    const Target h200 = target("sm_90a");
    for (bool along : {false, true}) {
        const TensorProductShape shape{.m = 4651, .n = 2, .k = 4096, .transpose_a = along};
        const ThinTiles tiles{.threads_long = 16, .threads_terms = 16, .results = 1, .terms = 8};
        const std::string text = build(scheduled(shape, tiles, h200)).cuda();
        EXPECT_NE(text.find(along ? "own = thread % 16" : "share = thread % 16"), std::string::npos) << text;
    }
}

// As was measured: tensor cores where many vectors are multiplied or fp8 is converted, threads where bytes are read.
TEST(ThinTiles, AreChosenWhereTheyWin) {
    auto is_chosen = [](const char* name) {
        return std::holds_alternative<ThinTiles>(best_tiling(parse_tensor_product(name)->shape, target("sm_90a")));
    };
    for (const char* faster : {"gemm_i8_31133x1x24640", "gemm_e4m3_448x1x34648_ta_tb", "gemm_i8_2x13952x4235_ta_tb",
                               "gemm_bf16_53813x2x28864_ta_tb_f32"})
        EXPECT_TRUE(is_chosen(faster)) << faster;
    for (const char* slower : {"gemm_e4m3_8x3699x20352_ta", "gemm_i8_1344x3x5824_ta_tb", "gemm_bf16_8x32960x57664_ta"})
        EXPECT_FALSE(is_chosen(slower)) << slower;
}

TEST(ThinTiles, HaveNames) {
    fuzz::Random random(22);
    for (int round = 0; round < 100; ++round) {
        const ThinTiles tiles = thin_tiles(random_thin(random), target("sm_90a"));
        EXPECT_EQ(parse_tiling(tiling_text(tiles)), ProductTiling(tiles)) << tiling_text(tiles);
    }
    for (const char* wrong : {"4x32x4v", "4x32x4v8p0", "64x32x4v8", "0x32x4v8", "4x32x4v8s2"})
        EXPECT_FALSE(parse_tiling(wrong)) << wrong;
}

}  // namespace
}  // namespace tw::schedules

// Products on matrix units: tiles for every shape, results of types that not every target has.
#include <random>

#include "ops/check.h"
#include "schedules/tensor_product.h"
#include "tests/ops/on_each_device.h"

namespace tw::schedules {
namespace {

Schedule scheduled(const TensorProductShape& shape, const TensorTiles& tiles, const Target& target) {
    TensorProduct p = declare_tensor_product(shape);
    Schedule s({p.c}, target);
    schedule_tensor_product(s, p.c, p.a, p.b, tiles);
    return s;
}

TEST(TensorProduct, EveryShapeHasTilesThatFit) {
    constexpr int most_shared = 232448;  // bytes of a block on sm_90
    std::mt19937 random(3);
    auto extent = [&] { return int64_t(std::exp2(std::uniform_real_distribution<>(0, 14)(random))); };
    for (int round = 0; round < 40; ++round) {
        TensorProductShape shape{.m = extent(), .n = extent(), .k = extent()};
        shape.operand = shape.result = std::array{bf16, f16, i8, e4m3}[round % 4];
        if (bytes_of(shape.operand) == 1) shape.result = f32;
        shape.transpose_a = random() % 2, shape.transpose_b = random() % 2;
        TensorTiles tiles = tensor_tiles(shape);
        SCOPED_TRACE(fmt::format("{} x {} x {}, {}", shape.m, shape.n, shape.k, name_of(shape.operand)));
        Program program = build(scheduled(shape, tiles, target("sm_90a")));
        EXPECT_EQ(program.kernels().size(), tiles.split_k > 1 ? 2u : 1u);
        EXPECT_LE(program.kernels()[0].shared_bytes, most_shared);
        EXPECT_LE(program.kernels()[0].threads, 256);
    }
}

// Many tiles fill a GPU by themselves; few tiles of long sums need parts.
TEST(TensorProduct, LongSumsOfFewResultsAreSplit) {
    EXPECT_EQ(tensor_tiles({.m = 8192, .n = 8192, .k = 8192}).split_k, 1);
    EXPECT_GT(tensor_tiles({.m = 128, .n = 128, .k = 65536}).split_k, 1);
    EXPECT_EQ(tensor_tiles({.m = 1, .n = 8192, .k = 8192}).block_m, 16);
}

class TensorProducts : public OnEachDevice {};
TW_ON_EACH_DEVICE(TensorProducts);

TEST_P(TensorProducts, OfFp8AndAllAtOnce) {
    for (Type type : {e4m3, e5m2, bf16}) {
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

}  // namespace
}  // namespace tw::schedules

// The tuner's search space: what it holds builds within the target's limits and computes what the declaration says.
#include <algorithm>

#include "schedules/catalog.h"
#include "schedules/tensor_product_names.h"
#include "schedules/tensor_product_space.h"
#include "schedules/tuned_records.h"
#include "tests/ops/on_each_device.h"
#include "tests/schedules/integers_for.h"
#include "verify/random_product.h"

namespace tw::schedules {
namespace {

Schedule scheduled(const TensorProductShape& shape, const ProductTiling& tiling, const Target& target) {
    return tensor_product_schedule(declare_tensor_product(shape), tiling, target);
}

/// At most `count` of the space, no two the same.
std::vector<ProductTiling> some_of(fuzz::Random& random, std::vector<ProductTiling> space, size_t count) {
    random.shuffle(space);
    if (space.size() > count) space.resize(count);
    return space;
}

TEST(TensorProductSpace, EveryTilingBuildsWithinTheLimits) {
    fuzz::Random random(11);
    size_t by_warpgroups = 0, by_warps = 0;
    for (int round = 0; round < 35; ++round) {
        TensorProductShape shape = fuzz::random_product(random, 13);
        Target limits = target(round % 5 == 4 ? "sm_80" : "sm_90a");
        if (limits.arch == "sm_80" && shape.operand == e4m3) shape.operand = bf16;  // has no fp8
        std::vector<ProductTiling> space = tensor_product_space(shape, limits);
        ASSERT_FALSE(space.empty());
        EXPECT_LE(space.size(), 60u) << fuzz::describe(shape, space[0]);
        for (size_t i = 0; i < space.size(); ++i)
            EXPECT_EQ(std::count(space.begin(), space.end(), space[i]), 1) << fuzz::describe(shape, space[i]);
        for (const ProductTiling& tiling : some_of(random, space, 6)) {
            SCOPED_TRACE(fuzz::describe(shape, tiling));
            (std::holds_alternative<WarpgroupTiles>(tiling) ? by_warpgroups : by_warps) += 1;
            Program program = build(scheduled(shape, tiling, limits));
            EXPECT_LE(program.kernels()[0].shared_bytes, shared_bytes_of(tiling, shape));
            EXPECT_LE(shared_bytes_of(tiling, shape), limits.shared_bytes);
        }
    }
    EXPECT_GT(by_warpgroups, 20u);
    EXPECT_GT(by_warps, 20u);
}

// Also after the schedules have changed since they were measured.
TEST(TensorProductSpace, EveryRecordBuilds) {
    for (const TunedRecord& record : parse_records(embedded_records(), "schedules/tuned/h200.jsonl")) {
        if (record.kernel.find(" #") != std::string::npos) continue;  // of a declaration: tuned_records_test
        SCOPED_TRACE(record.kernel + " " + record.tiling);
        const std::string tiled = record.kernel + "_tile" + record.tiling;
        EXPECT_NO_THROW(build(find_library_kernel(tiled)->make(target(record.arch))));
    }
}

// What makes products fast is in it: wide tiles of warpgroups, parts of long sums, rows of the instruction along n.
TEST(TensorProductSpace, HoldsWhatEachKindOfShapeNeeds) {
    auto has = [](const TensorProductShape& shape, auto wanted) {
        auto space = tensor_product_space(shape, target("sm_90a"));
        return std::any_of(space.begin(), space.end(), [&](const ProductTiling& tiling) {
            const auto* tiles = std::get_if<WarpgroupTiles>(&tiling);
            return tiles && wanted(*tiles);
        });
    };
    TensorProductShape large{.m = 8192, .n = 8192, .k = 8192, .transpose_b = true};
    EXPECT_TRUE(has(large, [](const WarpgroupTiles& t) { return t.block_m == 128 && t.block_n == 256; }));
    EXPECT_TRUE(has(large, [](const WarpgroupTiles& t) { return t.raster_group != WarpgroupTiles{}.raster_group; }));
    EXPECT_TRUE(has(large, [](const WarpgroupTiles& t) { return !t.stage_result; }));
    EXPECT_TRUE(has(large, [](const WarpgroupTiles& t) { return t.store_boxes; }));
    TensorProductShape deep{.m = 1024, .n = 1024, .k = 16384, .transpose_b = true};
    EXPECT_TRUE(has(deep, [](const WarpgroupTiles& t) { return t.split_k > 1; }));
    TensorProductShape flat{.m = 16, .n = 8192, .k = 8192, .transpose_b = true};
    EXPECT_TRUE(has(flat, [](const WarpgroupTiles& t) { return t.swap && t.block_m == 16; }));
}

class TensorProductSpaces : public OnEachDevice {};
TW_ON_EACH_DEVICE(TensorProductSpaces);

TEST_P(TensorProductSpaces, SampleComputesTheDeclaration) {
    fuzz::Random random(12);
    for (int round = 0; round < 12; ++round) {
        TensorProductShape shape = fuzz::random_product(random, 7);
        shape.k = std::max<int64_t>(shape.k, 1);
        Target few = device_target();  // blocks for all tiles: they have several in turn
        few.multiprocessors = static_cast<int>(random.between(2, 12));
        for (const ProductTiling& tiling : some_of(random, tensor_product_space(shape, few), 2)) {
            SCOPED_TRACE(fuzz::describe(shape, tiling));
            Schedule s = scheduled(shape, tiling, few);
            expect_declared(s, integers_for(s.outputs(), shape.operand == e4m3 ? 1 : 4));
        }
    }
}

// Long sums, whose parts a second kernel adds.
TEST_P(TensorProductSpaces, PartsComputeTheDeclaration) {
    TensorProductShape shape{.m = 24, .n = 40, .k = 2048, .transpose_b = true};
    auto space = tensor_product_space(shape, device_target());
    int tried = 0;
    for (const ProductTiling& tiling : space) {
        if (std::visit([](const auto& tiles) { return tiles.split_k == 1; }, tiling) || ++tried > 3) continue;
        SCOPED_TRACE(tiling_text(tiling));
        Schedule s = scheduled(shape, tiling, device_target());
        expect_declared(s, integers_for(s.outputs(), 4));
    }
    EXPECT_GT(tried, 3);
}

}  // namespace
}  // namespace tw::schedules

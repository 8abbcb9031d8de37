// The tuner: winners are right, and what cannot be measured or is wrong is said and not kept.
#include "tuning/tune_product.h"

#include "bench/check_product.h"
#include "schedules/tensor_product_space.h"
#include "tests/support/expect_error.h"

namespace tw::tuning {
namespace {

schedules::TensorProductShape shape_of(const std::string& name) {
    return schedules::parse_tensor_product(name).value().shape;
}

TuneResult tuned(const std::string& name, const std::string& device, size_t limit) {
    auto show = [](const std::string&, int64_t done, int64_t all, const std::string&) { EXPECT_LE(done, all); };
    return tune_product(name, shape_of(name), open_device(device), {.limit = limit, .seconds = 0.1}, show);
}

TEST(TuneProduct, MeasuresTheSpaceAndTheTilingOfToday) {
    std::string name = "gemm_bf16_24x40x64_tb";
    TuneResult result = tuned(name, "emulated", 4);
    EXPECT_EQ(result.record.kernel, name);
    EXPECT_EQ(result.measured.size(), 4u);
    EXPECT_TRUE(result.skipped.empty());
    EXPECT_EQ(result.today, tiling_text(best_tiling(shape_of(name), target("sm_90a"))));
    EXPECT_GE(result.today_milliseconds, result.record.milliseconds);
    auto tiling = schedules::parse_tiling(result.record.tiling);
    ASSERT_TRUE(tiling);
    auto product = declare_tensor_product(shape_of(name));
    EXPECT_EQ(result.record.schedule, tensor_product_schedule(product, *tiling, target("sm_90a")).save());
    EXPECT_EQ(tuned(name, "emulated", 1).record.tiling, result.today);
}

TEST(TuneProduct, HasATilingHoweverLittleTimeThereIs) {
    const std::string name = "gemm_bf16_24x40x64_tb";
    auto show = [](const std::string&, int64_t, int64_t, const std::string&) {};
    TuneResult result =
        tune_product(name, shape_of(name), open_device("emulated"), {.limit = 4, .within = 1e-6, .threads = 2}, show);
    EXPECT_EQ(result.record.tiling, result.today);
    ASSERT_EQ(result.skipped.size(), 3u);
    for (const SkippedTiling& skipped : result.skipped) EXPECT_EQ(skipped.reason, "no time was left to compile it");
}

TEST(TuneProduct, RefusesWhereNothingCanBeMeasured) {
    EXPECT_ERROR(tuned("gemm_bf16_8x8x8", "null", 2), "the null device only compiles");
}

TEST(ProductCheck, TellsRightFromWrong) {
    auto device = open_device("emulated");
    Target limits = target("sm_90a");
    // Square, so that each program takes the operands of the other: one reads b as [n, k], the other as [k, n].
    for (const char* suffix : {"", "_gelu"}) {
        auto right = shape_of(std::string("gemm_bf16_32x32x32_tb") + suffix);
        auto other = shape_of(std::string("gemm_bf16_32x32x32") + suffix);
        bench::ProductCheck check(right, device, limits);
        for (const auto& shape : {right, other}) {
            auto product = declare_tensor_product(shape);
            Executable executable(build(tensor_product_schedule(product, best_tiling(shape, limits), limits)), device);
            auto problem = check.problem_of(executable);
            EXPECT_EQ(problem.has_value(), shape == other) << problem.value_or("");
        }
    }
}

}  // namespace
}  // namespace tw::tuning

// The tuner: winners are right, whatever is tuned, and what cannot be measured or is wrong is said and not kept.
#include "tuning/tune.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "schedules/convolution_space.h"
#include "schedules/elementwise.h"
#include "schedules/tensor_product_names.h"
#include "support/error.h"
#include "tests/support/expect_error.h"
#include "tuning/check_results.h"

namespace tw::tuning {
namespace {

using testing::HasSubstr;

TuneResult tuned(const Tunable& tunable, const std::string& device, size_t limit) {
    auto show = [](const std::string&, int64_t done, int64_t all, const std::string&) { EXPECT_LE(done, all); };
    return tune(tunable, open_device(device), {.limit = limit, .seconds = 0.1}, show);
}

TEST(Tune, MeasuresTheSpaceAndTheTilingOfToday) {
    const Target limits = target("sm_90a");
    for (const char* name :
         {"gemm_bf16_24x40x64_tb", "gemm_f16_5x32x64_swiglu", "convolution_bf16_2x7x6x16_24_3x3_pad1",
          "convolution_data_gradient_f16_1x7x6x16_24_3x2_stride2",
          "convolution_weight_gradient_bf16_2x7x6x16_24_3x3_pad1"}) {
        SCOPED_TRACE(name);
        const Tunable tunable = find_tunable(name);
        const TuneResult result = tuned(tunable, "emulated", 4);
        EXPECT_EQ(result.record.kernel, name);
        EXPECT_EQ(result.measured.size(), 4u);
        EXPECT_TRUE(result.skipped.empty());
        EXPECT_EQ(result.today, tunable.tilings(limits)[0]);
        EXPECT_GE(result.today_milliseconds, result.record.milliseconds);
        EXPECT_EQ(result.record.schedule, tunable.schedule(result.record.tiling, limits).save());
        EXPECT_EQ(tuned(tunable, "emulated", 1).record.tiling, result.today);
    }
}

TEST(Tune, HasATilingHoweverLittleTimeThereIs) {
    auto show = [](const std::string&, int64_t, int64_t, const std::string&) {};
    const TuneResult result = tune(find_tunable("gemm_bf16_24x40x64_tb"), open_device("emulated"),
                                   {.limit = 4, .within = 1e-6, .threads = 2}, show);
    EXPECT_EQ(result.record.tiling, result.today);
    ASSERT_EQ(result.skipped.size(), 3u);
    for (const SkippedTiling& skipped : result.skipped) EXPECT_EQ(skipped.reason, "no time was left to compile it");
}

TEST(Tune, RefusesWhatItCannotTune) {
    EXPECT_ERROR(tuned(find_tunable("gemm_bf16_8x8x8"), "null", 2), "the null device only compiles");
    EXPECT_ERROR(find_tunable("softmax_131x37_f32"), "names no product on tensor cores, no convolution and no kernel");
    EXPECT_ERROR(find_tunable("gemm_bf16_8x8x8_tile64x64x64g1s2"), "leave out _tile64x64x64g1s2");
    EXPECT_ERROR(find_tunable("convolution_bf16_2x7x6x16_24_3x3_tilehalo64b32s2t1"), "leave out _tilehalo64b32s2t1");
    EXPECT_ERROR(tuned(find_tunable("convolution_bf16_2x7x6x16_24_3x3"), "emulated:sm_80", 2),
                 "convolution_bf16_2x7x6x16_24_3x3: sm_80 has no tilings of it that could be tuned");
    for (const char* taps : {"1x1", "3x3"})
        EXPECT_ERROR(find_tunable(fmt::format("convolution_bf16_2x7x6x16_24_{}_nchw", taps)),
                     "has channels first and no tilings of its own: its schedule multiplies images as they lie");
    EXPECT_ERROR(find_tunable("convolution_bf16_2x2x2x16_24_5x5"),
                 "there is no 'convolution_bf16_2x2x2x16_24_5x5' to tune; names that begin with convolution_ are");
    EXPECT_ERROR(find_tunable("gemm_bf16_8x8x8").schedule("halo64b32s2t1", target("sm_90a")),
                 "is no tiling of a product");
    EXPECT_ERROR(find_tunable("convolution_bf16_2x7x6x16_24_3x3").schedule("64", target("sm_90a")),
                 "is no tiling of a convolution");
}

TEST(Tune, SaysWhatATunableLacks) {
    auto show = [](const std::string&, int64_t, int64_t, const std::string&) {};
    const auto device = open_device("emulated");
    const Tunable whole = find_tunable("gemm_bf16_8x8x8");
    Tunable lacking = whole;
    lacking.name = "";
    EXPECT_ERROR(tune(lacking, device, {}, show), "tune: a kernel without a name: its Tunable lacks a name");
    lacking = whole, lacking.outputs = {};
    EXPECT_ERROR(tune(lacking, device, {}, show), "tune: gemm_bf16_8x8x8: its Tunable lacks outputs; give that");
    lacking = whole, lacking.tilings = nullptr;
    EXPECT_ERROR(tune(lacking, device, {}, show), "lacks tilings");
    lacking = whole, lacking.schedule = nullptr;
    EXPECT_ERROR(tune(lacking, device, {}, show), "lacks a schedule for each tiling");
    EXPECT_ERROR(tune(whole, nullptr, {}, show), "tune: gemm_bf16_8x8x8: no device; give one");
    EXPECT_ERROR(tune(whole, device, {.within = -1}, show),
                 "within = -1, threads = 0, least_gain = 0; give none below 0");
}

/// Of one's own: y = f(x), whose tilings are threads of a block.
Tunable own_family(bool is_exact) {
    const Tensor x = input("x", f32, {40, 32}), column = input("column", i32, {32});
    const Tensor y = compute("y", {40, 32}, [&](Expr i, Expr j) {
        const Expr value = x(i, column(j));
        return is_exact ? value * 3.0f : exp(value) / 3.0f;
    });
    Tunable own;
    own.name = is_exact ? "tripled" : "scaled";
    own.outputs = {y};
    own.tilings = [](const Target&) { return std::vector<std::string>{"32", "wrong", "64", "none", "128"}; };
    own.schedule = [y, x, column](const std::string& tiling, const Target& target) {
        Tensor made = y;
        if (tiling == "wrong")
            made = compute("y", {40, 32}, [&](Expr i, Expr j) { return x(i, column(j)) * 3.0f + 1.0f; });
        if (tiling == "none") throw_error(Error, "there is no such tiling");
        Schedule s({made}, target);
        schedules::schedule_each_element(s, s[made], tiling == "wrong" ? 256 : std::stoll(tiling));
        return s;
    };
    own.is_exact = is_exact;
    return own;
}

/// The wrong one is compiled and measured, but not kept, wherever it stands.
TEST(Tune, TakesAFamilyOfOnesOwn) {
    for (bool is_exact : {true, false}) {
        Tunable own = own_family(is_exact);
        const TuneResult result = tuned(own, "emulated", 9);
        EXPECT_EQ(result.record.kernel, own.name);
        EXPECT_EQ(result.today, "32");
        EXPECT_THAT(result.record.schedule, HasSubstr("split"));
        EXPECT_EQ(result.measured.size(), 4u);
        ASSERT_FALSE(result.skipped.empty());
        EXPECT_EQ(result.skipped.back().tiling, "none");
        EXPECT_EQ(result.skipped.back().reason, "there is no such tiling");
        own.tilings = [](const Target&) { return std::vector<std::string>{"wrong"}; };
        EXPECT_ERROR(tuned(own, "emulated", 9), "none of 1 tilings is usable; the first, wrong: WRONG: ");
        // Its records are read, kept, and told by name.
        schedules::TunedRecord measured = result.record;
        const auto tiling_by = [&] {
            const auto records = schedules::parse_records(schedules::records_text({measured}), "here");
            const schedules::RecordsInUse in_use(records);
            EXPECT_FALSE(schedules::tuned_tiling(own.name, target("sm_80")));
            return schedules::tuned_tiling(own.name, target("sm_90a"));
        };
        EXPECT_FALSE(tiling_by());  // the emulator's times are no GPU's
        EXPECT_EQ(std::exchange(measured.arch, "sm_90a"), "emulated sm_90a");
        EXPECT_EQ(tiling_by(), measured.tiling);
    }
}

/// By the interpreter, by the reference of a product, with approximations, and, where `flops` say that it is large,
/// element by element.
TEST(ResultCheck, TellsRightFromWrong) {
    const auto device = open_device("emulated");
    const Target limits = target("sm_90a");
    // Square, so that each program takes the operands of the other: one reads b as [n, k], the other as [k, n].
    for (const char* suffix : {"", "_gelu"})
        for (double flops : {0.0, 1e9}) {
            Tunable right = find_tunable(std::string("gemm_bf16_32x32x32_tb") + suffix);
            const Tunable other = find_tunable(std::string("gemm_bf16_32x32x32") + suffix);
            right.flops = flops;
            ResultCheck check(right, device, limits);
            for (const Tunable* each : {&std::as_const(right), &other}) {
                Executable executable(build(each->schedule(each->tilings(limits)[0], limits)), device);
                const auto problem = check.problem_of(executable);
                EXPECT_EQ(problem.has_value(), each == &other) << problem.value_or("");
            }
        }
    // Of each pass: a stride or a padding that is another one's, over operands of the same shapes.
    for (const char* pass : {"convolution", "convolution_data_gradient", "convolution_weight_gradient"})
        for (double flops : {0.0, 1e9}) {
            Tunable right = find_tunable(pass + std::string("_bf16_1x6x6x16_16_3x3_pad1"));
            const Tunable other = find_tunable(pass + std::string("_bf16_1x6x6x16_16_3x3_pad2_dilation2"));
            right.flops = flops;
            ResultCheck check(right, device, limits);
            for (const Tunable* each : {&std::as_const(right), &other}) {
                Executable executable(build(each->schedule(each->tilings(limits)[0], limits)), device);
                const auto problem = check.problem_of(executable);
                EXPECT_EQ(problem.has_value(), each == &other) << problem.value_or("");
            }
        }
}

/// A reference that computes something else is nothing to compare with.
TEST(ResultCheck, ComparesItsReferenceFirst) {
    const auto device = open_device("emulated");
    const Target limits = target("sm_90a");
    Tunable large = own_family(true);
    large.flops = 1e9;
    Executable executable(build(large.schedule("32", limits)), device);
    EXPECT_EQ(ResultCheck(large, device, limits).problem_of(executable), std::nullopt);
    large.reference = [&](const Target& target) { return large.schedule("wrong", target); };
    EXPECT_ERROR(ResultCheck(large, device, limits).problem_of(executable),
                 "tripled: nothing to compare results with: of the reference, 'y': max error");
}

}  // namespace
}  // namespace tw::tuning

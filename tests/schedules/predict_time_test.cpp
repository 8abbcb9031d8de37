// What is counted in lowered kernels, against what can be counted by hand, and the choices that follow from it.
#include "codegen/cost/predict_time.h"

#include <gmock/gmock.h>

#include "codegen/cost/lane_values.h"
#include "ops/check.h"
#include "ops/runner.h"
#include "runtime/driver/arch.h"
#include "schedules/calibrated_speeds.h"
#include "schedules/candidates.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "schedules/choose_by_model.h"
#include "schedules/fused_training.h"
#include "schedules/plain_schedule.h"
#include "tests/schedules/measured_times.h"
#include "tests/support/cache_folder.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using codegen::KernelWork;
using codegen::predict_time;
using schedules::choose_schedule;
using schedules::plain_schedule;
using testing::HasSubstr;
using testing::Not;

const Target Sm90a = target("sm_90a");

std::vector<KernelWork> work_of(const Schedule& s) {
    std::vector<KernelWork> all;
    for (const auto& kernel : predict_time(s.tree(), s.target()).kernels) all.push_back(kernel.work);
    return all;
}
Schedule scheduled(const std::string& kernel) { return schedules::find_kernel(kernel)->make(Sm90a); }

TEST(CountWork, MovesEachElementOfACopyOnce) {
    const int64_t n = 1 << 20;
    Tensor x = input("x", f32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return 2.0 * x(i); });
    for (const Schedule& s : {plain_schedule({y}, Sm90a), choose_schedule({y}, Sm90a)}) {
        const std::vector<KernelWork> work = work_of(s);
        ASSERT_EQ(work.size(), 1u);
        EXPECT_NEAR(work[0].memory_bytes, 8.0 * n, 8.0 * n * 0.01);
        EXPECT_NEAR(work[0].l2_bytes, 8.0 * n, 8.0 * n * 0.01);
        EXPECT_DOUBLE_EQ(work[0].of_block.round_trips, 1);
    }
}

/// Neighbours along an outer axis are in sectors of their own, of which a thread wants 4 bytes of 32.
TEST(CountWork, CountsWholeSectors) {
    const int64_t n = 2048;
    Tensor x = input("x", f32, {n, n});
    Tensor across = compute("across", {n, n}, [&](Expr i, Expr j) { return x(j, i); });
    Tensor along = compute("along", {n, n}, [&](Expr i, Expr j) { return x(i, j); });
    const double bytes = 4.0 * n * n;
    EXPECT_NEAR(work_of(plain_schedule({along}, Sm90a))[0].l2_bytes, 2 * bytes, bytes * 0.01);
    EXPECT_NEAR(work_of(plain_schedule({across}, Sm90a))[0].l2_bytes, 9 * bytes, bytes * 0.01);
    EXPECT_NEAR(work_of(plain_schedule({across}, Sm90a))[0].memory_bytes, 2 * bytes, bytes * 0.01);
}

/// A thread that goes along a row finds the rest of a sector in its cache, and waits for memory again and again.
TEST(CountWork, FindsWhatALoopReadsAgain) {
    for (const auto& [type, terms] : {std::pair{f32, 512}, {bf16, 4096}}) {
        Tensor x = input("x", type, {4096, terms});
        Axis k = reduce_axis("k", terms);
        Tensor y = compute("y", {4096}, [&](Expr i) { return sum(cast(f32, x(i, k)), k); });
        const KernelWork work = work_of(plain_schedule({y}, Sm90a))[0];
        const double bytes = 4096.0 * terms * bytes_of(type);
        EXPECT_NEAR(work.l2_bytes, bytes, bytes * 0.2) << name_of(type);
        EXPECT_GE(work.of_block.round_trips, terms / 64.0);
    }
}

/// A split far larger than what it splits masks the middle of a loop, and of two blocks the last: what is in front
/// counts.
TEST(CountWork, CountsWhatIsInFrontOfMasks) {
    const int64_t rows = 512, columns = 64;
    Tensor x = input("x", f32, {rows, columns});
    Tensor y = compute("y", {rows, columns}, [&](Expr i, Expr j) { return 2.0 * x(i, j); });
    Schedule turns({y}, Sm90a), blocks({y}, Sm90a);
    auto [i, j] = turns.loops<2>(y);
    auto [turn, lane] = turns.split(turns.split(j, 512, Tail::Mask)[1], 32);
    turns.bind(i, grid.x), turns.bind(lane, thread);
    auto [p, q] = blocks.loops<2>(y);
    auto [block, row] = blocks.split(p, rows - 1, Tail::Mask);
    blocks.bind(block, grid.x), blocks.bind(q, thread);
    const double bytes = 2.0 * 4 * rows * columns;
    EXPECT_NEAR(work_of(turns)[0].l2_bytes, bytes, bytes * 0.01);
    EXPECT_NEAR(work_of(blocks)[0].memory_bytes, bytes, bytes * 0.01);
}

TEST(CountWork, CountsProductsOfTensorCores) {
    for (const char* name : {"gemm_bf16_2048x1024x512_tb", "gemm_e4m3_1024x1024x1024_tb", "gemm_tf32_512x512x512_tb"}) {
        double macs = 0, wanted = 0;
        for (const KernelWork& work : work_of(scheduled(name))) macs += work.blocks * work.of_block.unit_cycles;
        // 2048 products a cycle of 16 bits, half as many of 32, twice as many of 8.
        const std::string text = name;
        wanted = text.find("bf16") != text.npos   ? 2048.0 * 1024 * 512 / 2048
                 : text.find("e4m3") != text.npos ? 1024.0 * 1024 * 1024 / 4096
                                                  : 512.0 * 512 * 512 / 1024;
        EXPECT_GE(macs, wanted * 0.99) << name;
        EXPECT_LE(macs, wanted * 1.7) << name;  // mma.sync reaches less
    }
}

/// What a compiler computes costs nothing: counts of terms in a loop that it unrolls, and so quotients by them.
TEST(CountWork, LeavesConstantsToTheCompiler) {
    Tensor x = input("x", f32, {4096, 64}), n = input("n", f32, {64});
    Axis k = reduce_axis("k", 64);
    auto instructions = [&](const Expr& number) {
        Tensor y = compute("y", {4096}, [&](Expr i) { return sum(x(i, k) / number, k); });
        return work_of(plain_schedule({y}, Sm90a))[0].of_block;
    };
    const codegen::BlockWork by_constant = instructions(constant(f32, 3.0)), by_data = instructions(n(k));
    EXPECT_EQ(by_constant.special, 0);
    EXPECT_GT(by_data.special, 0);
    EXPECT_GT(by_data.instructions, 1.5 * by_constant.instructions);
    // The counts that a Welford sum divides by are constants where all of its loop is unrolled.
    auto quotients = [](int64_t terms) {
        Tensor rows = input("x", f32, {256, terms});
        const std::vector<Tensor> moments = compute_tuple("m", {256}, [&](const std::vector<Expr>& i) {
            Axis l = reduce_axis("l", terms);
            return welford(rows(i[0], l), {l});
        });
        return work_of(plain_schedule(moments, Sm90a))[0].of_block.special;
    };
    EXPECT_EQ(quotients(32), 0);
    EXPECT_GT(quotients(8192), 8192);
}

/// Gathers: made up, but the same for the same place, so that a row's neighbours stay neighbours.
/// As a compiler does, however often they are written.
TEST(CountWork, ComputesEqualValuesOnce) {
    const Tensor x = input("x", f32, {4096}), w = input("w", f32, {4100});
    auto root = [&](const Expr& i, const Expr& at) { return sqrt(abs(x(i) - w(at))); };
    auto instructions = [](const std::function<Expr(const Expr& i)>& body) {
        return work_of(plain_schedule({compute("y", {4096}, body)}, Sm90a))[0].of_block.instructions;
    };
    const double once = instructions([&](const Expr& i) {
        const Expr d = root(i, i + 1);
        return d * d + d;
    });
    const double written_thrice =
        instructions([&](const Expr& i) { return root(i, i + 1) * root(i, 1 + i) + root(i, i + 1); });
    const double of_three = instructions([&](const Expr& i) { return root(i, i + 1) * root(i, i) + root(i, i + 2); });
    EXPECT_DOUBLE_EQ(written_thrice, once);
    EXPECT_GT(of_three, 1.5 * once);
}

TEST(CountWork, TakesGatheredRowsForRows) {
    Tensor table = input("table", f32, {50000, 512}), ids = input("ids", i32, {8192});
    Tensor y = compute("y", {8192, 512}, [&](Expr p, Expr j) { return table(cast(i64, ids(p)), j); });
    const double bytes = 8192.0 * 512 * 4;
    const KernelWork work = work_of(choose_schedule({y}, Sm90a))[0];
    EXPECT_NEAR(work.l2_bytes, 2 * bytes, bytes * 0.2);
    EXPECT_GT(work.of_block.round_trips, 1);  // the number of the row comes first
}

/// More of anything takes longer.
TEST(PredictTime, GrowsWithTheWork) {
    double before = 0;
    for (const char* name :
         {"softmax_64x256_bf16_automatic", "softmax_4096x4096_bf16_automatic", "softmax_16384x8192_bf16_automatic"}) {
        const Schedule s = scheduled(name);
        const codegen::Prediction time = predict_time(s.tree(), s.target());
        EXPECT_GT(time.seconds, before * 1.5) << name;
        before = time.seconds;
    }
    EXPECT_NEAR(before, 0.127e-3, 0.04e-3);  // measured on an H200
    const Schedule s = scheduled("softmax_16384x8192_bf16_automatic");
    EXPECT_EQ(predict_time(s.tree(), s.target()).kernels[0].bound, "memory");
}

/// f32 products by threads, whose loops are written out, as an H200 ran them: what these read again is in registers.
/// Within 1.38 and 4.1 times before that was known.
TEST(PredictTime, IsNearWhatProductsByThreadsTake) {
    int lines = 0;
    auto all = schedules::read_measured_times(
        "tests/schedules/measured_threads.txt", [&](const std::string& name, const std::string& tiling) {
            if (lines++ % 6 != 0) return 0.0;
            const auto kernel = schedules::find_library_kernel(name + "_tile" + tiling);
            return predict_time(kernel->make(Sm90a).tree(), Sm90a).seconds * 1e3;
        });
    for (auto& [name, tilings] : all)
        std::erase_if(tilings, [](const schedules::MeasuredTiling& one) { return one.predicted == 0; });
    schedules::expect_near_times(all, 32, 1.2, 1.6);
}

/// A warp that makes long results of sums waits for itself, and only the other group multiplies meanwhile.
TEST(PredictTime, ShowsLongResultsOfTensorCores) {
    const Schedule s = schedules::schedule_with({{"dpre.tiling", "128x192x64g1c2u2s4r64b"}}, [] {
        return choose_schedule(schedules::linear_gelu_backward(32768, 3072, 768).outputs, Sm90a);
    });
    const codegen::KernelPrediction product = predict_time(s.tree(), s.target()).kernels[0];
    EXPECT_EQ(product.bound, "results of tensor cores");
    EXPECT_NEAR(product.seconds, 0.43e-3, 0.11e-3);  // measured on an H200
    const Schedule plain = scheduled("gemm_bf16_8192x8192x8192_tb");
    EXPECT_EQ(predict_time(plain.tree(), plain.target()).kernels[0].bound, "tensor cores");
}

/// Arrays that one step leaves behind have no registers in the next: those of scores, and what is made of them.
TEST(PredictTime, ArraysHaveRegistersWhileTheyAreUsed) {
    const Schedule s = scheduled("attention_gradients_bf16_2x16x4096x128");
    for (const codegen::KernelPrediction& kernel : predict_time(s.tree(), s.target()).kernels)
        EXPECT_NE(kernel.bound, "spilled registers") << kernel.name << ": " << kernel.work.registers;
}

TEST(ChooseByModel, TakesWhatTheRuleDoesNotWhereThatIsFarFromMemory) {
    const Tensor x = input("x", f32, {8, 64, 56, 56});
    const Axis d = reduce_axis("d", 5);
    const Tensor energy = compute("energy", {8, 64, 56, 56}, [&](Expr n, Expr c, Expr i, Expr j) {
        const Expr near = padded(x, 0.0)(n, c - 2 + d, i, j);
        return sum(near * near, d);
    });
    const Schedule s = schedules::choose_schedule({energy}, Sm90a);
    EXPECT_THAT(s.explain(), HasSubstr("by the model of time, not as by rule: energy."));
    Runner runner(s, open_device("emulated"));
    const CheckResult check = runner.set(random_bindings(s.outputs(), 1)).check();
    EXPECT_TRUE(check.ok) << check.text;
    // What a search asks for comes first.
    const schedules::Choices none;
    EXPECT_THAT(schedules::choose_schedule({energy}, Sm90a).explain(), Not(HasSubstr("by the model")));
}

TEST(ChooseByModel, LeavesTheRuleAloneNearMemory) {
    for (const char* name : {"softmax_16384x8192_bf16_automatic", "gelu_bias_4096x4096_bf16_automatic",
                             "gemm_bf16_512x512x512_tb_automatic", "softmax_16x64_f32_automatic"})
        EXPECT_THAT(scheduled(name).explain(), Not(HasSubstr("by the model of time, not"))) << name;
}

TEST(ChooseByModel, BestCandidatesComeFirst) {
    Tensor x = input("x", bf16, {557, 49152});
    Axis k = reduce_axis("k", 49152);
    Tensor y = compute("y", {557}, [&](Expr i) { return sum(cast(f32, x(i, k)), k); });
    const std::function<Schedule()> rule = [&] { return choose_schedule({y}, Sm90a); };
    const auto all = schedules::best_by_model(rule, 8);
    ASSERT_GE(all.size(), 3u);
    EXPECT_LE(all.size(), 8u);
    EXPECT_TRUE(all[0].picks.empty());
    EXPECT_TRUE(std::is_sorted(all.begin() + 1, all.end(),
                               [](const auto& a, const auto& b) { return a.time.seconds < b.time.seconds * 0.9; }));
    for (const auto& each : all)
        EXPECT_NEAR(predict_time(schedules::schedule_with(each.picks, rule).tree(), Sm90a).seconds, each.time.seconds,
                    1e-12);
}

TEST(CalibratedSpeeds, AreKeptForTheArchitecture) {
    const CacheFolder folder;
    const double memory = codegen::DeviceSpeeds().memory_bytes;
    EXPECT_EQ(schedules::calibrated_speeds(Sm90a).memory_bytes, memory);
    codegen::DeviceSpeeds slow;
    slow.memory_bytes = memory / 4;
    schedules::keep_speeds(Sm90a, slow);
    EXPECT_EQ(schedules::calibrated_speeds(Sm90a).memory_bytes, memory / 4);
    EXPECT_EQ(schedules::calibrated_speeds(target("sm_80")).memory_bytes, memory);
    setenv("TW_CACHE_DIR", "/proc/nowhere", 1);  // until the folder's end
    EXPECT_ERROR(schedules::keep_speeds(Sm90a, slow), "cannot keep the speeds of sm_90a in /proc/nowhere/speeds");
}

}  // namespace
}  // namespace tw

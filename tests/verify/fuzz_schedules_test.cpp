// Random schedules of random computations, compared with the declaration after every step and as kernels on the
// emulator. TW_FUZZ_COUNT sets their number (2000), TW_FUZZ_SEED the seed; TW_FUZZ_KERNELS=0 leaves the kernels
// out.
#include <map>

#include <gtest/gtest.h>

#include "ops/program.h"
#include "tests/verify/expect_no_failures.h"
#include "tests/verify/fuzz_seed.h"
#include "verify/check_case.h"
#include "verify/fuzz.h"
#include "verify/random_step.h"
#include "verify/run_kernels.h"

namespace tw::fuzz {
namespace {

FuzzOptions options_of_run() {
    FuzzOptions options;
    options.seed = fuzz_seed();
    return options;
}

void expect_all_right(const Summary& summary, const FuzzOptions& options) {
    std::printf("%s", to_string(summary).c_str());
    EXPECT_EQ(summary.cases, options.count);
    expect_no_failures(summary.failures, options.seed);
}

TEST(FuzzSchedules, LegalStepsKeepTheResult) {
    FuzzOptions options = options_of_run();
    options.count = number_from_environment("TW_FUZZ_COUNT", 2000);
    if (number_from_environment("TW_FUZZ_KERNELS", 1)) options.run_kernels = run_on_emulator;
    Summary summary = fuzz_schedules(options);
    expect_all_right(summary, options);
    if (options.count < 1000) return;
    // The generator has not gone blind: every verb was accepted, every computation had its turn.
    for (const char* verb : {"split", "fuse", "order", "bind", "at", "inline_stage", "stage", "stage in global",
                             "stage result", "set_memory", "in_place", "rfactor", "pipeline", "via", "cut",
                             "cut where partial", "scatter", "persistent", "roles"})
        EXPECT_GT(summary.accepted_verbs[verb], 0) << verb;
    EXPECT_EQ(summary.computations.size(), computations().size());
    EXPECT_GT(summary.accepted, 4 * options.count);
}

/// Boxes that tables of one, two and three dimensions place, with rows of less than 128 bytes, in kernels that one
/// program in three at least can be.
TEST(FuzzSchedules, BoxesAreDrawn) {
    std::map<size_t, int> by_tables;
    int boxes = 0, of_short_rows = 0, roles = 0, count = 240;
    for (int number = 0; number < count; ++number) {
        Random random(5, static_cast<uint64_t>(number));
        CheckedSchedule checked(computation("placed_matrices").make(random));
        const std::vector<RandomStep> steps = random_boxes(random, checked.schedule(), checked.problem());
        for (const RandomStep& step : steps) checked.take(step);
        std::string kernel;
        try {
            kernel = build(checked.schedule()).cuda();
        } catch (const Error&) {
            continue;
        }
        if (kernel.find("tw::tma_load") == std::string::npos) continue;
        ++boxes;
        roles += kernel.find("math") != std::string::npos;
        for (const Tensor& tensor : tensors_of(checked.problem())) {
            if (tensor.name() == "table") ++by_tables[tensor.rank()];
            if (tensor.name() == "x") of_short_rows += steps.at(1).size * bytes_of(tensor.type()) < 128;  // split k
        }
    }
    EXPECT_GT(boxes, count / 3);
    EXPECT_GT(of_short_rows, count / 6);
    EXPECT_GT(roles, count / 20);
    for (size_t rank : {1, 2, 3}) EXPECT_GT(by_tables[rank], count / 20) << rank;
}

TEST(FuzzSchedules, ArbitraryStepsAreRefusedOrRight) {
    FuzzOptions options = options_of_run();
    options.count = number_from_environment("TW_FUZZ_COUNT", 2000) / 5;
    expect_all_right(fuzz_arbitrary(options), options);
}

// The fuzzer itself: a fault is found, told, and reduced to what matters.
TEST(FuzzSchedules, WrongKernelsAreFoundAndShrunk) {
    FuzzOptions options;
    options.count = 4;
    options.computation = "matrix_product";
    options.run_kernels = [](const std::vector<KernelJob>& jobs) {
        std::vector<KernelResult> results;
        for (const KernelJob& job : jobs) {
            KernelResult result;
            TreeInterpreter interpreter(job.schedule->tree());
            for (const Bindings& launch : *job.launches) result.outputs.push_back(interpreter.run(launch));
            bool splits = job.schedule->save().find("\nsplit") != std::string::npos;
            HostArray& c = result.outputs[0][0];
            if (splits && !c.bytes.empty()) c.bytes.back() ^= std::byte{1};
            results.push_back(std::move(result));
        }
        return results;
    };
    Summary summary = fuzz_schedules(options);
    ASSERT_FALSE(summary.failures.empty());
    const std::string& text = summary.failures[0].text;
    EXPECT_NE(text.find("the kernels' result is not the interpreter's: c["), std::string::npos) << text;
    EXPECT_NE(text.find("s.split("), std::string::npos) << text;
    size_t steps = 0;
    for (size_t at = text.find("// ["); at != std::string::npos; at = text.find("// [", at + 1)) ++steps;
    EXPECT_LE(steps, 2u) << text;  // a split, and the step that made its loop
}

TEST(FuzzSchedules, ACrashCostsOneCase) {
    FuzzOptions options;
    options.count = 6;
    options.batch = 3;
    options.shrink = false;
    options.run_kernels = [](const std::vector<KernelJob>& jobs) {
        std::vector<KernelResult> results(jobs.size());
        for (size_t k = 0; k < jobs.size(); ++k) {
            results[k].refused = true;
            if (jobs[k].schedule->outputs()[0].name() == "y") std::abort();  // two of the first six computations
        }
        return results;
    };
    Summary summary = fuzz_schedules(options);
    EXPECT_EQ(summary.cases, 6);
    EXPECT_GE(summary.failures.size(), 1u);
    EXPECT_LE(summary.failures.size(), 3u);
    for (const Failure& failure : summary.failures)
        EXPECT_NE(failure.text.find("died of signal 6"), std::string::npos) << failure.text;
}

}  // namespace
}  // namespace tw::fuzz

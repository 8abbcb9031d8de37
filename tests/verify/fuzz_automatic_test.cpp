// Random computations, scheduled by rule, as kernels on the emulator. TW_FUZZ_AUTOMATIC sets their number (500),
// TW_FUZZ_SEED the seed.
#include <gtest/gtest.h>

#include "tests/verify/expect_no_failures.h"
#include "tests/verify/fuzz_seed.h"
#include "verify/fuzz.h"
#include "verify/run_kernels.h"

namespace tw::fuzz {
namespace {

TEST(FuzzAutomatic, IsWhatIsDeclared) {
    FuzzOptions options;
    options.seed = fuzz_seed();
    options.count = number_from_environment("TW_FUZZ_AUTOMATIC", 500);
    options.run_kernels = run_on_emulator;
    Summary summary = fuzz_automatic(options);
    expect_no_failures(summary.failures, options.seed);
    EXPECT_EQ(summary.cases, options.count);
    EXPECT_GT(summary.kernels, options.count * 9 / 10);
    for (const char* kind : {"map", "reduction", "product", "window", "scan", "scatter", "gradient"})
        EXPECT_GT(summary.computations[kind], options.count / 20) << kind;
}

/// TW_FUZZ_CANDIDATES sets their number.
TEST(FuzzCandidates, AreWhatIsDeclared) {
    FuzzOptions options;
    options.seed = fuzz_seed();
    options.count = number_from_environment("TW_FUZZ_CANDIDATES", 100);
    options.run_kernels = run_on_emulator;
    Summary summary = fuzz_candidates(options);
    expect_no_failures(summary.failures, options.seed);
    EXPECT_EQ(summary.cases, options.count);
    EXPECT_GT(summary.kernels, options.count * 9 / 10);
}

/// TW_FUZZ_GENERATED sets their number.
TEST(FuzzGenerated, AreWhatIsDeclared) {
    FuzzOptions options;
    options.seed = fuzz_seed();
    options.count = number_from_environment("TW_FUZZ_GENERATED", 12);
    options.run_kernels = run_on_emulator;
    Summary summary = fuzz_generated(options);
    expect_no_failures(summary.failures, options.seed);
    EXPECT_EQ(summary.cases, options.count);
    EXPECT_GT(summary.kernels, options.count * 3 / 4);
}

}  // namespace
}  // namespace tw::fuzz

// Random convolutions and their gradients, as kernels on the emulator. TW_FUZZ_CONVOLUTIONS sets their number (100),
// TW_FUZZ_SEED the seed.
#include <gtest/gtest.h>

#include "tests/verify/expect_no_failures.h"
#include "tests/verify/fuzz_seed.h"
#include "verify/fuzz.h"
#include "verify/run_kernels.h"

namespace tw::fuzz {
namespace {

TEST(FuzzConvolutions, AreWhatTheyDeclare) {
    FuzzOptions options;
    options.seed = fuzz_seed();
    options.count = number_from_environment("TW_FUZZ_CONVOLUTIONS", 100);
    options.run_kernels = run_on_emulator;
    Summary summary = fuzz_convolutions(options);
    expect_no_failures(summary.failures, options.seed);
    EXPECT_EQ(summary.cases, options.count);
    EXPECT_GT(summary.kernels, options.count * 8 / 10);
    for (const char* pass : {"forward", "data gradient", "weight gradient", "layer"})
        EXPECT_GT(summary.computations[pass], options.count / 10) << pass;
}

}  // namespace
}  // namespace tw::fuzz

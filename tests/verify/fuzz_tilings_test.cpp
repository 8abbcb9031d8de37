// Random products in random tilings, as kernels on the emulator. TW_FUZZ_TILINGS sets their number (200), TW_FUZZ_SEED
// the seed.
#include <gtest/gtest.h>

#include "tests/verify/expect_no_failures.h"
#include "tests/verify/fuzz_seed.h"
#include "verify/fuzz.h"
#include "verify/run_kernels.h"

namespace tw::fuzz {
namespace {

TEST(FuzzTilings, ProductsAreWhatTheyDeclare) {
    FuzzOptions options;
    options.seed = fuzz_seed();
    options.count = number_from_environment("TW_FUZZ_TILINGS", 200);
    options.run_kernels = run_on_emulator;
    Summary summary = fuzz_tilings(options);
    expect_no_failures(summary.failures, options.seed);
    EXPECT_EQ(summary.cases, options.count);
    EXPECT_GT(summary.kernels, options.count * 9 / 10);
    for (const char* unit : {"warps", "warpgroups"}) EXPECT_GT(summary.computations[unit], options.count / 20) << unit;
}

// The fuzzer itself: a wrong element is found and told with the product.
TEST(FuzzTilings, WrongKernelsAreFound) {
    FuzzOptions options;
    options.count = 2;
    options.run_kernels = [](const std::vector<KernelJob>& jobs) {
        std::vector<KernelResult> results = run_on_emulator(jobs);
        for (KernelResult& result : results) result.outputs.at(0).at(0).bytes.back() ^= std::byte{1};
        return results;
    };
    Summary summary = fuzz_tilings(options);
    ASSERT_EQ(summary.failures.size(), 2u);
    for (const Failure& failure : summary.failures) {
        EXPECT_EQ(failure.text.find("gemm_"), 0u) << failure.text;
        EXPECT_NE(failure.text.find("c["), std::string::npos) << failure.text;
        EXPECT_NE(failure.text.find("s.mma("), std::string::npos) << failure.text;
    }
}

}  // namespace
}  // namespace tw::fuzz

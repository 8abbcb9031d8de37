// Illegal steps in random contexts: each is refused with a message that says why and names the line of the step.
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/verify/expect_no_failures.h"
#include "tests/verify/fuzz_seed.h"
#include "verify/fuzz.h"

namespace tw::fuzz {
namespace {

TEST(FuzzIllegal, EveryKindIsRefusedWithItsReason) {
    uint64_t seed = fuzz_seed();
    int64_t count = number_from_environment("TW_FUZZ_ILLEGAL_COUNT", 1000);
    IllegalSummary summary = fuzz_illegal(count, seed, [](const Error& error) { note_site_read(error.site()); });
    std::printf("%lld illegal steps of %zu kinds\n", static_cast<long long>(count), summary.kinds.size());
    expect_no_failures(summary.failures, seed);
    EXPECT_GE(summary.kinds.size(), 40u);
    for (const IllegalKind& kind : summary.kinds) EXPECT_GT(kind.tried, 0) << kind.name;
}

}  // namespace
}  // namespace tw::fuzz

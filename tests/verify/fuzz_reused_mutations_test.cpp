// Mutations of kernels whose arrays take turns at the same bytes of shared memory: barriers in between left out, and
// arrays in the bytes of what is needed at the same time. Each is caught, or provably changes nothing.
#include <gtest/gtest.h>

#include "tests/ops/random_chain.h"
#include "tests/verify/expect_all_caught.h"

namespace tw::fuzz {
namespace {

/// Takes all memory that its arrays would need side by side, but for a byte.
schedules::CatalogEntry crowded(const std::string& name, const std::function<Schedule(const Target&)>& make) {
    return {.name = name, .description = "", .make = [=](const Target& target) { return without_room(make, target); }};
}

MutationSummary examined(std::vector<schedules::CatalogEntry> programs, int64_t count) {
    for (const schedules::CatalogEntry& program : programs)
        EXPECT_NE(build(program.make(target("sm_90a"))).cuda().find("union {"), std::string::npos) << program.name;
    MutationOptions options;
    options.programs = std::move(programs);
    options.count = number_from_environment("TW_FUZZ_REUSED_MUTATIONS", count);
    options.kinds = {MutationKind::Barrier, MutationKind::Stage};
    options.original_seeds = 5;
    return expect_all_caught(options);
}

TEST(FuzzReusedMemory, EveryMutantOfAChainIsCaught) {
    std::vector<schedules::CatalogEntry> chains;
    for (unsigned seed : {1u, 2u, 3u, 4u, 5u, 6u})
        chains.push_back(crowded(fmt::format("chain {}", seed),
                                 [=](const Target& target) { return RandomChain(seed).schedule(target); }));
    examined(std::move(chains), 100);
}

}  // namespace
}  // namespace tw::fuzz

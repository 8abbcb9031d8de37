// Mutations of kernels whose arrays take turns at the same bytes of shared memory: barriers in between left out, and
// arrays in the bytes of what is needed at the same time. Each is caught, or provably changes nothing.
#include <functional>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include "schedules/catalog.h"
#include "tests/ops/random_chain.h"
#include "tests/verify/expect_all_caught.h"

namespace tw::fuzz {
namespace {

using Make = std::function<Schedule(const Target&)>;

/// Has not the memory that its arrays would need side by side. Nothing if they cannot take turns.
std::optional<schedules::CatalogEntry> crowded(const std::string& name, const Make& make) {
    try {
        without_room(make, target("sm_90a"));
    } catch (const Error&) {
        return {};
    }
    return schedules::CatalogEntry{
        .name = name, .description = "", .make = [=](const Target& target) { return without_room(make, target); }};
}

/// TW_FUZZ_REUSED_MUTATIONS sets their number (0: all).
void expect_caught(std::vector<schedules::CatalogEntry> programs, std::set<MutationKind> kinds, int64_t count,
                   std::vector<std::string> unproven = {}) {
    MutationOptions options;
    options.programs = std::move(programs);
    options.count = number_from_environment("TW_FUZZ_REUSED_MUTATIONS", count);
    options.kinds = std::move(kinds);
    options.original_seeds = 5;
    expect_all_caught(options, std::move(unproven));
}

TEST(FuzzReusedMemory, EveryMutantOfAChainIsCaught) {
    std::vector<schedules::CatalogEntry> chains;
    for (unsigned seed = 1; chains.size() < 8; ++seed)
        if (auto chain = crowded(fmt::format("chain {}", seed),
                                 [=](const Target& target) { return RandomChain(seed).schedule(target); }))
            chains.push_back(*chain);
    expect_caught(std::move(chains), {MutationKind::Barrier, MutationKind::Stage}, 120);
}

/// The result leaves where tiles of operands were, which another role has loaded.
TEST(FuzzReusedMemory, EveryMutantOfAProductWithRolesIsCaught) {
    std::vector<schedules::CatalogEntry> products;
    for (const char* name :
         {"gemm_bf16_64x32x160_tb_tile64x32x32g1s3r", "gemm_bf16_120x64x96_tb_tile128x64x32g2s2rb"}) {
        auto product = crowded(name, schedules::find_library_kernel(name)->make);
        ASSERT_TRUE(product) << name;
        products.push_back(*product);
    }
    // Nobody waits for the last stages of the only tile to be given back.
    expect_caught(std::move(products), {MutationKind::Signal, MutationKind::Stage}, 80,
                  {"mbarrier_arrive(&k_outer_empty", "mbarrier_arrive(&k_outer_empty"});
}

}  // namespace
}  // namespace tw::fuzz

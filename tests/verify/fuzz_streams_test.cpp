// Mutations of reductions that share a pass: of random chains, and of attention in which one role loads what the other
// multiplies. Each is caught, or provably changes nothing.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "tests/ops/random_stream.h"
#include "tests/verify/expect_all_caught.h"

namespace tw::fuzz {
namespace {

/// Telling data; in every third set, rows of x begin with elements that no maximum sees, or end so.
Bindings data_of_streams(const std::vector<Tensor>& outputs, uint64_t seed) {
    Bindings bindings = telling_bindings(outputs, seed);
    auto x = bindings.inputs.find("x");
    if (seed % 3 != 2 || x == bindings.inputs.end()) return bindings;
    std::mt19937 random(static_cast<unsigned>(seed));
    HostArray& array = x->second;
    for (int64_t row = 0; row < array.shape[0]; ++row) {
        const int64_t length = array.shape[1], count = static_cast<int64_t>(random() % (length + 1));
        const bool at_end = random() % 2;
        const double none = random() % 4 ? -INFINITY : INFINITY;
        for (int64_t k = 0; k < count; ++k) array.set({row, at_end ? length - 1 - k : k}, make_value(array.type, none));
    }
    return bindings;
}

/// Chains whose loops and addresses do not depend on data, so that what changes nothing can be proved to, and without
/// maxima that follow others: no law says that they are the same where an element counts twice. Each has rows with
/// terms in several tiles: else corrections change nothing, and no law says so.
const unsigned Chains[] = {3000, 3011, 3012, 3013, 3015, 3016, 3017, 3026, 3027, 3028, 3042, 3046, 3049, 3054, 3055,
                           3060, 3079, 3080, 3081, 3086, 3088, 3089, 3095, 3099, 3100, 3102, 3105, 3112, 3113};

schedules::CatalogEntry chain_of(unsigned seed) {
    const double lazy = 1;  // as data move on by more
    auto make = [=](const Target& target) { return RandomStream(seed, Lengths::Same, {lazy}).schedule(target); };
    return {.name = fmt::format("chain {}", seed), .description = "", .make = make};
}

/// Corrections left out, old values for new ones and the other way round, guards and barriers left out, exchanges with
/// other lanes. TW_FUZZ_STREAM_MUTATIONS sets their number (0: all).
TEST(FuzzStreams, EveryMutantOfAChainIsCaught) {
    MutationOptions options;
    for (unsigned seed : Chains) options.programs.push_back(chain_of(seed));
    options.data = data_of_streams;
    options.count = number_from_environment("TW_FUZZ_STREAM_MUTATIONS", 160);
    options.kinds = {MutationKind::Stream, MutationKind::Barrier};
    options.original_seeds = 5;
    const MutationSummary summary = expect_all_caught(options);
    EXPECT_GT(summary.kinds[static_cast<size_t>(MutationKind::Stream)].caught(), 60);
}

/// One role loads what the other multiplies, and steps that a mask leaves out are skipped: beside the above, waits of
/// rings, arrivals and fences left out, and steps more or less. TW_FUZZ_ROLE_MUTATIONS sets their number (0: all).
TEST(FuzzStreams, EveryMutantOfAttentionIsCaught) {
    MutationOptions options;
    options.programs = {*schedules::find_kernel("attention_bf16_1x1x256x16_causal_tile128x32s2n")};
    options.count = number_from_environment("TW_FUZZ_ROLE_MUTATIONS", 64);
    options.kinds = {MutationKind::Stream, MutationKind::Exchange, MutationKind::Signal, MutationKind::Extent};
    options.original_seeds = 2;
    expect_all_caught(options);
}

}  // namespace
}  // namespace tw::fuzz

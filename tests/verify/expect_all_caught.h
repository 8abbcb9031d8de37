// Mutations of kernels: each is caught, or provably changes nothing.
#pragma once
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/verify/expect_no_failures.h"
#include "tests/verify/fuzz_seed.h"
#include "verify/mutations.h"

namespace tw::fuzz {

/// Some of every kind that is asked for. For each of `unproven` a mutant may survive whose text has that in it.
/// TW_FUZZ_SEED sets the seed, always the same here: a mutant that changes nothing, but for reasons that no law of
/// terms.h covers, must not fail a commit that has nothing to do with it.
inline MutationSummary expect_all_caught(MutationOptions options, std::vector<std::string> unproven = {}) {
    options.seed = static_cast<uint64_t>(number_from_environment("TW_FUZZ_SEED", 5));
    MutationSummary summary = fuzz_mutations(options);
    std::printf("%s", to_string(summary).c_str());
    for (const Failure& same : summary.equivalent) std::printf("changes nothing: %s\n", same.text.c_str());
    for (const Failure& one : summary.not_compared) ADD_FAILURE() << "cannot be run on terms: " << one.text;
    std::vector<Failure> failures = summary.failures;
    std::erase_if(failures, [&](const Failure& failure) {
        const auto found = std::ranges::find_if(
            unproven, [&](const std::string& text) { return failure.text.find(text) != std::string::npos; });
        if (found == unproven.end()) return false;
        unproven.erase(found);
        return true;
    });
    expect_no_failures(failures, options.seed);
    for (MutationKind kind : options.kinds)
        EXPECT_GT(summary.kinds[static_cast<size_t>(kind)].caught(), 0) << to_string(kind);
    return summary;
}

}  // namespace tw::fuzz

// What a case tells the parent process, and the parent's sum of that.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "verify/fuzz.h"
#include "verify/workers.h"

namespace tw::fuzz {

struct CaseResult {
    std::string computation = {};
    std::map<std::string, int64_t> accepted = {}, refused = {};  ///< by verb
    int64_t kernels = 0, kernels_refused = 0;
    std::string failure = {};

    std::string encode() const;
};

/// The problem of a case: its computation by turns, unless the options name one.
Problem problem_for(const FuzzOptions& options, int64_t number, Random& random);

/// Runs all cases in worker processes and sums up what they tell.
Summary collect(const FuzzOptions& options, const std::function<void(const std::vector<int64_t>&, const Tell&)>& work);

}  // namespace tw::fuzz

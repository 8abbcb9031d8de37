// Random computations that the library schedules, as kernels: each gives what it declares.
#pragma once
#include <functional>
#include <string>

#include "dsl/schedule.h"
#include "verify/fuzz.h"
#include "verify/random.h"

namespace tw::fuzz {

/// A computation, and what makes its schedule, which may throw.
struct Proposal {
    std::string text, kind;  ///< what failures tell; what the summary counts
    std::function<Schedule()> schedule;
    Match match = bitwise;  ///< of results
};

/// `propose` makes a case from its own random numbers. Inputs are small whole numbers, so that sums are exact in every
/// order.
Summary fuzz_scheduled(const FuzzOptions& options, const std::function<Proposal(Random&)>& propose);

/// How a computation is scheduled, and what failures tell of it behind the target's name.
struct Way {
    std::string text = {};
    std::function<Schedule()> schedule;
};
/// The same of random computations (random_computation.h), each for a random target.
Summary fuzz_computations(
    const FuzzOptions& options,
    const std::function<Way(Random&, const std::vector<Tensor>& outputs, const Target& target)>& choose);

}  // namespace tw::fuzz

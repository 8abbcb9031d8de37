// Random checks of schedules: legal steps against the declaration, on the interpreter after each step and finally as
// kernels; arbitrary steps, which must be refused or right; illegal ones, which must be refused with a good message.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "support/error.h"
#include "verify/problem.h"

namespace tw::fuzz {

/// A schedule to be built and run as kernels, once for each of the bindings.
struct KernelJob {
    const Schedule* schedule;
    const std::vector<Bindings>* launches;
};
struct KernelResult {
    std::vector<std::vector<HostArray>> outputs;  ///< a list a launch, in the schedule's order of outputs
    std::string failure = {};                     ///< why there are none: build errors, reports of the emulator
    bool refused = false;                         ///< the failure is a limit of the target, told by an Error of build
};
/// Builds the kernels of all schedules, together in few compilations, and runs them. One result a job.
using RunKernels = std::function<std::vector<KernelResult>(const std::vector<KernelJob>&)>;

struct FuzzOptions {
    int64_t count = 2000;
    uint64_t seed = 1;
    int64_t first = 0;             ///< the number of the first case: case k of a seed is always the same
    int workers = 2;               ///< processes
    int64_t batch = 32;            ///< cases whose kernels are compiled together
    int steps = 12;                ///< accepted steps of a schedule, at most
    std::string computation = {};  ///< only this one
    double time_limit_s = 120;     ///< a worker that is silent for longer has hung
    bool shrink = true;
    RunKernels run_kernels = {};  ///< none: the interpreter only
    std::function<void(const std::string&)> log = {};
    std::function<void(int64_t done)> progress = {};  ///< after each case
};

/// What one case did wrong, ready to be printed.
struct Failure {
    int64_t number = 0;  ///< of the case
    std::string text;
};
struct Summary {
    int64_t cases = 0, accepted = 0, refused = 0, kernels = 0, kernels_refused = 0;
    std::map<std::string, int64_t> accepted_verbs, refused_verbs, computations;
    std::vector<Failure> failures;
};
/// "2000 schedules, 14033 steps accepted, ...", and a table of the verbs.
std::string to_string(const Summary& summary);

/// Random legal schedules; each is compared with the declaration after every accepted step, replayed from its saved
/// trace, and run as kernels.
Summary fuzz_schedules(const FuzzOptions& options);

/// Random products on tensor cores in random tilings, as kernels: each gives what the product declares. Computations
/// are "warps" and "warpgroups"; there are no steps.
Summary fuzz_tilings(const FuzzOptions& options);

/// Random convolutions and their gradients, in drawn tiles and those that the model chooses, as kernels. Computations
/// are "forward", "data gradient" and "weight gradient"; there are no steps.
Summary fuzz_convolutions(const FuzzOptions& options);

/// Random computations (random_computation.h) as choose_schedule schedules them, as kernels. Computations are named
/// after their last stages: "map", "reduction", "product", "window", "scan", "scatter", or "gradient"; there are no
/// steps.
Summary fuzz_automatic(const FuzzOptions& options);

/// The same with other choices than the rules have (schedules/choices.h), a few of each computation at random.
Summary fuzz_candidates(const FuzzOptions& options);

/// Random computations in schedules that come from the rules' by a few random changes (tuning/mutate_schedule.h).
Summary fuzz_generated(const FuzzOptions& options);

/// Steps with dead handles, foreign stages and absurd sizes: refused by an Error that names the caller's line, or
/// right.
Summary fuzz_arbitrary(const FuzzOptions& options);

/// One kind of violation, tried with random contexts.
struct IllegalKind {
    std::string name;      ///< "split_that_does_not_divide"
    std::string expected;  ///< part of the message
    int64_t tried = 0;
};
struct IllegalSummary {
    std::vector<IllegalKind> kinds;
    std::vector<Failure> failures;
};
/// Illegal steps, every kind about equally often: each must throw an Error that contains the expected words and the
/// file and line of the step, and must leave the schedule as it was. `seen` gets every Error.
IllegalSummary fuzz_illegal(int64_t count, uint64_t seed, const std::function<void(const Error&)>& seen = {});

}  // namespace tw::fuzz

#include "schedules/choose.h"
#include "verify/fuzz_scheduled.h"
#include "verify/random_computation.h"

namespace tw::fuzz {

Summary fuzz_automatic(const FuzzOptions& options) {
    return fuzz_scheduled(options, [](Random& random) {
        static const std::vector<const char*> targets{"sm_90a", "sm_90a", "sm_80"};
        const bool differentiates = random.chance(0.25);
        const RandomComputation made = differentiates ? random_gradients(random) : random_computation(random);
        Problem problem;
        problem.outputs = made.outputs;
        const Target target = tw::target(random.pick(targets));
        return Proposal{describe(problem) + "\non " + target.arch, made.kind,
                        [made, target] { return schedules::choose_schedule(made.outputs, target); },
                        equal_values};  // the larger of 0 and -0 is either
    });
}

}  // namespace tw::fuzz

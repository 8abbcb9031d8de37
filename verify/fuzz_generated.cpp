#include "codegen/lower.h"
#include "schedules/choose.h"
#include "schedules/plain_schedule.h"
#include "support/error.h"
#include "tuning/mutate_schedule.h"
#include "verify/fuzz_scheduled.h"
#include "verify/random_computation.h"
#include "verify/random_step.h"

namespace tw::fuzz {
namespace {

constexpr int64_t MostChanges = 6;
constexpr double MostLeafRuns = 3e6;  // that an emulator takes some seconds for

/// The schedule after some random changes; what is refused is none.
Schedule randomly_changed(Schedule s, Random random) {
    for (int64_t left = random.between(1, MostChanges); left > 0; --left) try {
            std::string change;
            const std::optional<Schedule> next = tuning::mutate(ChangeableTrace(s), random, change);
            if (!next || !next->deterministic() || leaf_runs(next->tree()) > MostLeafRuns) continue;
            codegen::lower(next->tree(), next->target());
            s = *next;
        } catch (const Error&) {  // a change that is not possible here
        }
    return s;
}

}  // namespace

Summary fuzz_generated(const FuzzOptions& options) {
    return fuzz_scheduled(options, [](Random& random) {
        const RandomComputation made = random_computation(random);
        Problem problem;
        problem.outputs = made.outputs;
        const Target target = tw::target(random.chance(0.7) ? "sm_90a" : "sm_80");
        const bool is_plain = random.chance(0.3);
        const uint64_t seed = random.next();
        return Proposal{describe(problem) + "\non " + target.arch, made.kind,
                        [=] {
                            return randomly_changed(is_plain ? schedules::plain_schedule(made.outputs, target)
                                                             : schedules::choose_schedule(made.outputs, target),
                                                    Random(seed));
                        },
                        equal_values};  // the larger of 0 and -0 is either
    });
}

}  // namespace tw::fuzz

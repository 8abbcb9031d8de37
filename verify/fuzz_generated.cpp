#include "codegen/lower.h"
#include "schedules/choose.h"
#include "schedules/plain_schedule.h"
#include "support/error.h"
#include "tuning/mutate_schedule.h"
#include "verify/fuzz_scheduled.h"
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
    return fuzz_computations(options, [](Random& random, const std::vector<Tensor>& outputs, const Target& target) {
        const bool is_plain = random.chance(0.3);
        const uint64_t seed = random.next();
        return Way{.schedule = [=] {
            return randomly_changed(
                is_plain ? schedules::plain_schedule(outputs, target) : schedules::choose_schedule(outputs, target),
                Random(seed));
        }};
    });
}

}  // namespace tw::fuzz

#include "codegen/lower.h"
#include "schedules/candidates.h"
#include "support/error.h"
#include "verify/fuzz_scheduled.h"
#include "verify/random_computation.h"

namespace tw::fuzz {
namespace {

constexpr int MostPicks = 4;

/// Other choices than the rule's, one after another, each of those that are asked with the ones before.
schedules::Picks random_picks(Random& random, const std::function<Schedule()>& rule) {
    schedules::Picks picks;
    for (int64_t left = random.between(1, MostPicks); left > 0; --left) try {
            schedules::Choices choices(picks);
            codegen::lower(rule().tree(), rule().target());
            if (choices.asked().empty()) return picks;
            const schedules::Choice& choice = random.pick(choices.asked());
            schedules::Picks next = picks;
            next[choice.name] = random.pick(choice.options);
            schedules::Choices others(next);
            const Schedule s = rule();
            codegen::lower(s.tree(), s.target());
            if (others.unmet().empty()) picks = next;
        } catch (const Error&) {  // a choice that is not possible here
        }
    return picks;
}

}  // namespace

Summary fuzz_candidates(const FuzzOptions& options) {
    return fuzz_scheduled(options, [](Random& random) {
        const RandomComputation made = random_computation(random);
        Problem problem;
        problem.outputs = made.outputs;
        const Target target = tw::target(random.chance(0.7) ? "sm_90a" : "sm_80");
        const std::function<Schedule()> rule = [made, target] {
            return schedules::choose_schedule(made.outputs, target);
        };
        const schedules::Picks picks = random_picks(random, rule);
        return Proposal{describe(problem) + "\non " + target.arch + " with " + schedules::picks_text(picks), made.kind,
                        [picks, rule] { return schedules::schedule_with(picks, rule); },
                        equal_values};  // the larger of 0 and -0 is either
    });
}

}  // namespace tw::fuzz

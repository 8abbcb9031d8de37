#include "codegen/lower.h"
#include "schedules/candidates.h"
#include "support/error.h"
#include "verify/fuzz_scheduled.h"

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
    return fuzz_computations(options, [](Random& random, const std::vector<Tensor>& outputs, const Target& target) {
        const std::function<Schedule()> rule = [=] { return schedules::choose_schedule(outputs, target); };
        const schedules::Picks picks = random_picks(random, rule);
        return Way{" with " + schedules::picks_text(picks), [=] { return schedules::schedule_with(picks, rule); }};
    });
}

}  // namespace tw::fuzz

#include <deque>

#include <fmt/format.h>

#include "ops/check.h"
#include "ops/integer_ranges.h"
#include "support/error.h"
#include "verify/case_result.h"
#include "verify/fuzz_scheduled.h"
#include "verify/random_computation.h"
#include "verify/workers.h"

namespace tw::fuzz {
namespace {

constexpr int64_t kMostMagnitude = 4;  // of integers whose sums are exact in every order and type

/// The worker's side: cases of one batch.
class ScheduledFuzzer {
public:
    ScheduledFuzzer(const FuzzOptions& options, const std::function<Proposal(Random&)>& propose, const Tell& tell)
        : options_(options), propose_(propose), tell_(tell) {}

    void run(const std::vector<int64_t>& numbers) {
        for (int64_t number : numbers) make(number);
        std::vector<KernelJob> jobs;
        std::vector<Case*> owners;
        for (Case& current : cases_) {
            if (!current.schedule) continue;
            jobs.push_back({&*current.schedule, &current.launches});
            owners.push_back(&current);
        }
        if (cases_.size() == 1)
            tell_({Message::Kind::Begin, cases_[0].number, cases_[0].text + "\nwhile its kernels ran"});
        else
            tell_({Message::Kind::Begin, -1, "while its kernels ran"});
        std::vector<KernelResult> results = jobs.empty() ? std::vector<KernelResult>() : options_.run_kernels(jobs);
        for (size_t k = 0; k < jobs.size(); ++k) {
            tell_(
                {Message::Kind::Begin, owners[k]->number, owners[k]->text + "\nwhile its declaration was interpreted"});
            compare(*owners[k], results.at(k));
        }
        for (const Case& done : cases_) tell_({Message::Kind::Result, done.number, done.result.encode()});
    }

private:
    struct Case {
        int64_t number = 0;
        std::string text = {};
        std::optional<Schedule> schedule = {};
        std::vector<Bindings> launches = {};
        CaseResult result = {};
        Match match = bitwise;
    };

    void make(int64_t number) {
        Random random(options_.seed, static_cast<uint64_t>(number));
        const Proposal proposal = propose_(random);
        Case& current = cases_.emplace_back(Case{.number = number});
        current.text = proposal.text;
        current.match = proposal.match;
        current.result.computation = proposal.kind;
        tell_({Message::Kind::Begin, number, current.text});
        try {
            current.schedule = proposal.schedule();
            const std::vector<Tensor>& outputs = current.schedule->outputs();
            Bindings& bindings = current.launches.emplace_back(random_bindings(outputs, random.next()));
            const auto deciding = integer_ranges(outputs, bindings);  // where something is read, or counts
            for (auto& [name, array] : bindings.inputs)
                if (!deciding.contains(name)) fill_integers(array, -kMostMagnitude, kMostMagnitude, random.next());
        } catch (const std::exception& error) {
            current.schedule.reset();
            current.result.failure = current.text + "\n" + error.what();
        }
    }

    static void compare(Case& current, const KernelResult& got) {
        ++(got.refused ? current.result.kernels_refused : current.result.kernels);
        if (got.refused) return;
        std::string wrong = got.failure;
        const auto& outputs = current.schedule->outputs();
        if (wrong.empty()) {
            const std::vector<HostArray> expected = interpret_plain(outputs, current.launches[0]);
            for (size_t o = 0; o < outputs.size() && wrong.empty(); ++o)
                wrong = difference(outputs[o].name(), got.outputs[0][o], expected[o], current.match).value_or("");
        }
        if (!wrong.empty())
            current.result.failure = current.text + "\n" + wrong + "\n" + current.schedule->trace_as_cpp();
    }

    const FuzzOptions& options_;
    const std::function<Proposal(Random&)>& propose_;
    const Tell& tell_;
    std::deque<Case> cases_;
};

}  // namespace

Summary fuzz_scheduled(const FuzzOptions& options, const std::function<Proposal(Random&)>& propose) {
    return collect(options, [&](const std::vector<int64_t>& cases, const Tell& tell) {
        ScheduledFuzzer(options, propose, tell).run(cases);
    });
}

Summary fuzz_computations(
    const FuzzOptions& options,
    const std::function<Way(Random&, const std::vector<Tensor>& outputs, const Target& target)>& choose) {
    return fuzz_scheduled(options, [&](Random& random) {
        const RandomComputation made = random_computation(random);
        Problem problem;
        problem.outputs = made.outputs;
        const Target target = tw::target(random.chance(0.7) ? "sm_90a" : "sm_80");
        const Way way = choose(random, made.outputs, target);
        return Proposal{describe(problem) + "\non " + target.arch + way.text, made.kind, way.schedule,
                        equal_values};  // the larger of 0 and -0 is either
    });
}

}  // namespace tw::fuzz

#include <memory>

#include "support/error.h"
#include "verify/case_result.h"
#include "verify/check_case.h"
#include "verify/fuzz.h"
#include "verify/workers.h"

namespace tw::fuzz {
namespace {

/// The worker's side: cases of one batch.
class ScheduleFuzzer {
public:
    ScheduleFuzzer(const FuzzOptions& options, const Tell& tell) : options_(options), tell_(tell) {}

    void run(const std::vector<int64_t>& numbers) {
        for (int64_t number : numbers) {
            cases_.emplace_back().number = number;
            make(cases_.back());
        }
        if (options_.run_kernels) run_kernels();
        for (Case& done : cases_) finish(done);
    }

private:
    struct Case {
        int64_t number = 0;
        std::unique_ptr<CheckedSchedule> checked;
        CaseResult result;
        bool kernels_fail = false;
    };

    void make(Case& current) {
        Random random(options_.seed, static_cast<uint64_t>(current.number));
        tell_({Message::Kind::Begin, current.number, ""});
        Problem problem = problem_for(options_, current.number, random);
        current.result.computation = problem.name;
        tell_({Message::Kind::Note, current.number, problem.name + "\n" + describe(problem)});
        current.checked = std::make_unique<CheckedSchedule>(std::move(problem));
        current.checked->check();
        for (const RandomStep& step : first_steps(random, *current.checked)) take(current, step);
        auto wanted = static_cast<size_t>(random.between(1, options_.steps));
        for (size_t tried = 0; tried < 3 * wanted && current.checked->taken().size() < wanted; ++tried)
            if (!current.checked->failure())
                take(current, random_step(random, current.checked->schedule(), current.checked->problem()));
        if (!current.checked->failure()) current.checked->check_replay();
        take_room(current.number, *current.checked);
    }

    /// Of every other case.
    static void take_room(int64_t number, CheckedSchedule& checked) {
        if (number % 2 == 0 && !checked.failure()) checked.take_room();
    }

    static std::vector<RandomStep> first_steps(Random& random, const CheckedSchedule& checked) {
        if (random.chance(0.4)) return random_tiling(random, checked.schedule(), checked.problem());
        if (random.chance(0.2)) return random_boxes(random, checked.schedule(), checked.problem());
        return {};
    }

    void take(Case& current, const RandomStep& step) {
        if (current.checked->failure()) return;
        tell_({Message::Kind::Note, current.number, to_string(step)});
        bool taken = current.checked->take(step);
        ++(taken ? current.result.accepted : current.result.refused)[verb_name(step.verb)];
        if (taken) current.checked->check();
    }

    void run_kernels() {
        std::vector<KernelJob> jobs;
        std::vector<Case*> owners;
        for (Case& current : cases_) {
            if (current.checked->failure()) continue;
            jobs.push_back({&current.checked->schedule(), &current.checked->launches()});
            owners.push_back(&current);
        }
        if (jobs.empty()) return;
        tell_({Message::Kind::Begin, cases_.size() == 1 ? cases_[0].number : -1, notes_of_kernels()});
        std::vector<KernelResult> results = options_.run_kernels(jobs);
        for (size_t k = 0; k < jobs.size(); ++k) {
            Case& owner = *owners[k];
            ++(results.at(k).refused ? owner.result.kernels_refused : owner.result.kernels);
            owner.checked->check_kernels(results[k]);
            owner.kernels_fail = owner.checked->failure().has_value();
        }
    }

    std::string notes_of_kernels() const {
        return cases_.size() == 1 ? "while its kernels ran\n" + cases_[0].checked->report() : "";
    }

    /// Sends the result; a failure is shrunk first, unless that dies.
    void finish(Case& done) {
        if (done.checked->failure())
            done.result.failure = options_.shrink ? shrunk_report(done) : done.checked->report();
        tell_({Message::Kind::Result, done.number, done.result.encode()});
    }

    std::string shrunk_report(const Case& failed) {
        // A step that ended badly is not among those taken: such a schedule is reported as it is.
        std::unique_ptr<CheckedSchedule> smallest;
        auto fails = [&](const std::vector<RandomStep>& steps) {
            auto attempt = again(failed, steps);
            if (!attempt->failure()) return false;
            smallest = std::move(attempt);
            return true;
        };
        std::vector<RandomStep> steps = failed.checked->taken();
        if (!fails(steps)) return failed.checked->report();
        shrink(steps, fails);
        return smallest->report();
    }

    std::unique_ptr<CheckedSchedule> again(const Case& failed, const std::vector<RandomStep>& steps) {
        Random random(options_.seed, static_cast<uint64_t>(failed.number));
        auto checked = std::make_unique<CheckedSchedule>(problem_for(options_, failed.number, random));
        checked->check();
        for (const RandomStep& step : steps) {
            if (checked->failure()) return checked;
            if (checked->take(step)) checked->check();
        }
        if (!checked->failure()) checked->check_replay();
        take_room(failed.number, *checked);
        if (!checked->failure() && failed.kernels_fail)
            checked->check_kernels(options_.run_kernels({{&checked->schedule(), &checked->launches()}}).at(0));
        return checked;
    }

    const FuzzOptions& options_;
    const Tell& tell_;
    std::vector<Case> cases_;
};

}  // namespace

Summary fuzz_schedules(const FuzzOptions& options) {
    return collect(options, [&](const std::vector<int64_t>& cases, const Tell& tell) {
        ScheduleFuzzer(options, tell).run(cases);
    });
}

}  // namespace tw::fuzz

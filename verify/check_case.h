// One random case: a problem, a schedule of it, and the comparison of both.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "verify/fuzz.h"
#include "verify/random_step.h"

namespace tw::fuzz {

/// A schedule that is compared with its declaration after every step.
class CheckedSchedule {
public:
    explicit CheckedSchedule(Problem problem);

    /// Performs the step. False if it was refused, or makes the interpretation too long: then nothing has changed.
    bool take(const RandomStep& step);
    /// As above, with any action; it is refused by an Error whose message contains `file`.
    bool attempt(const std::string& what, const std::string& file, const std::function<void(Schedule&)>& action);
    /// Compares with the declaration, and the replayed trace with the schedule.
    void check();
    void check_replay();
    /// Goes on with a target on which arrays of shared memory take turns at the same bytes, if they can.
    void take_room();
    /// What the kernels of this schedule computed.
    void check_kernels(const KernelResult& result);

    /// What is wrong, once something is.
    const std::optional<std::string>& failure() const { return failure_; }
    void fail(const std::string& what) {
        if (!failure_) failure_ = what;
    }

    const Problem& problem() const { return problem_; }
    const Schedule& schedule() const { return schedule_; }
    const std::vector<RandomStep>& taken() const { return taken_; }
    /// What kernels are compared on: random floats, where their order is fixed.
    const std::vector<Bindings>& launches() const;
    /// The problem, what is wrong, the trace as C++, and the tree.
    std::string report() const;

private:
    void compare(const std::vector<HostArray>& got, const std::vector<HostArray>& expected, const Match& match,
                 const std::string& what);

    Problem problem_;
    std::vector<std::vector<HostArray>> expected_;  // of the exact data, a list a launch
    Schedule schedule_;
    std::vector<RandomStep> taken_;
    std::optional<std::string> failure_;
};

/// The shortest part of `steps` that this finds for which `fails` says yes, given the steps to try.
std::vector<RandomStep> shrink(std::vector<RandomStep> steps,
                               const std::function<bool(const std::vector<RandomStep>&)>& fails);

}  // namespace tw::fuzz

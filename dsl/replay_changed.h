// A schedule whose trace has other steps in some places.
#pragma once
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "dsl/schedule.h"

namespace tw {

/// What is otherwise at a step of a trace. Loops and stages have the trace's numbers, whatever other steps make.
struct StepChange {
    size_t step = 0;           ///< of the trace, from 0
    std::string instead = {};  ///< as replay() reads it; empty: the step stays as it is
    bool is_left_out = false;  ///< and with it what names a loop or a stage that it would have made
    /// A loop that is split in front of the step, and whether the outer or the inner part is the loop from here on.
    struct {
        int loop = -1;
        int64_t size = 1;
        bool keeps_outer = true;
    } split = {};
};

/// A saved trace, and what its steps make and name.
class ChangeableTrace {
public:
    explicit ChangeableTrace(const Schedule& schedule);

    const Schedule& schedule() const { return schedule_; }
    /// The steps as replay() reads them.
    const std::vector<std::string>& steps() const { return steps_; }
    /// Loops that the step names, by their numbers; each as often as it does.
    const std::vector<int>& loops_named_by(size_t step) const { return named_.at(step); }
    /// How many loops there are in front of the step; those are numbered from 0.
    size_t loops_before(size_t step) const { return counts_.at(step).loops; }

    /// The trace with these changes, which are of a step each. Throws Error where a step is refused, for another reason
    /// than that a change has left out what it names.
    Schedule with(const std::vector<StepChange>& changes, TW_HERE) const;

private:
    friend class Replayer;
    /// How many there were behind each step; first before all of them.
    struct Counts {
        size_t loops, stages;
    };

    Schedule schedule_;
    std::vector<std::string> steps_;
    std::vector<std::vector<int>> named_;
    std::vector<Counts> counts_;
};

}  // namespace tw

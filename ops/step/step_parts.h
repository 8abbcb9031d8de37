// Parts of a step that have schedules of their own (own_schedule.h).
#pragma once
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "dsl/own_schedule.h"

namespace tw {

/// Parts that are planned by what they are made of.
using OpenedParts = std::set<const OwnSchedule*>;

/// Which operations of a step make results of parts, those that are opened left out.
class StepParts {
public:
    StepParts() = default;
    explicit StepParts(const std::vector<Tensor>& outputs, const OpenedParts& opened = {});

    struct Result {
        std::shared_ptr<const OwnSchedule> part;
        int index = 0;  ///< which of its results
    };
    /// Nothing for any other operation. What a part was declared by stands for its results, too: whatever is derived
    /// of one result, as a gradient, reads others by that.
    const Result* result_of(const Operation& operation) const;

    /// What the step is planned of, producers first: of a part those operations alone that make its results, in place
    /// of what these are made of down to its operands.
    const std::vector<std::shared_ptr<const Operation>>& operations() const { return operations_; }

private:
    std::map<const Operation*, Result> results_;
    std::vector<std::shared_ptr<const Operation>> operations_;
};

}  // namespace tw

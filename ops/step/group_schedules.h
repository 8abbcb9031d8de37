// Kernels of parts of a step: equal parts are scheduled once.
#pragma once
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "ops/registry.h"
#include "ops/step/declare_group.h"

namespace tw {

/// What a group becomes.
struct GroupSchedule {
    std::shared_ptr<const Selection> selection;                ///< none if it cannot be scheduled,
    double seconds = std::numeric_limits<double>::infinity();  ///< as the model of time predicts
    std::string problem = {};                                  ///< and why not
};

/// What the own schedule of a part makes of it. Throws what that throws, and Error if it is of other operands, results
/// or, unless they are told to be equivalent, another declaration than the group.
Selection selection_of_part(const GroupDeclaration& part, const Target& target);

class GroupSchedules {
public:
    /// The registry has to outlive it.
    GroupSchedules(const Registry& registry, const Target& target, const Preferences& preferences)
        : registry_(registry), target_(target), preferences_(preferences) {}

    const GroupSchedule& of(const GroupDeclaration& group);
    /// Different declarations that were asked for.
    size_t num_scheduled() const { return known_.size(); }

private:
    GroupSchedule schedule(const GroupDeclaration& group) const;

    const Registry& registry_;
    const Target target_;
    const Preferences preferences_;
    std::map<std::string, GroupSchedule> known_;  // by text
};

}  // namespace tw

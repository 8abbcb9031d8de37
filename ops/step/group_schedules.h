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

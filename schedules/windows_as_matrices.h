// Sums over windows that no rule puts on tensor cores, over copies in which they are products of matrices.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// A schedule by rule, and the sums of products of matrices that no tensor core makes in it.
struct FoundSchedule {
    Schedule schedule;
    std::vector<std::string> off_units;
    std::vector<std::string> reasons;  ///< why they are not, and are not declared anew
};

/// What `choose` makes of the outputs as declare_products() says them; or, where some sums are off tensor cores that
/// as_matrices() takes, what it makes of those, if the model of time expects it to be faster: explain() has the reasons.
Schedule with_windows_as_matrices(const std::vector<Tensor>& outputs, const Target& target,
                                  const std::function<FoundSchedule(const Redeclared& products)>& choose);

}  // namespace tw::schedules

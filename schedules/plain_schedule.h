// The schedule without an idea: a thread for each element.
#pragma once
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// A kernel for each reduction and each output, a thread for each element; what stands between is inlined. Throws what
/// its steps throw.
Schedule plain_schedule(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules

// Steps that are tried: what steps and passes refuse is decided by them alone.
#pragma once
#include <functional>

#include "dsl/schedule.h"

namespace tw::schedules {

/// Makes the steps, which schedule the stage, if none of them is refused, nor the kernels of the stage and of those
/// that they add; else the schedule stays as it was. Whether it was made.
bool take_steps(Schedule& s, Stage stage, const std::function<void(Schedule&)>& steps);

}  // namespace tw::schedules

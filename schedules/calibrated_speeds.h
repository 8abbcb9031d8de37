// What `tw calibrate` has measured, for the model of time, kept beside the records of tuning.
#pragma once
#include "codegen/cost/device_speeds.h"
#include "dsl/target.h"

namespace tw::schedules {

/// Of the target's architecture, in the folder "speeds" of the cache of kernels; those of an H200 where there are none
/// by this version. Read once a process.
const codegen::DeviceSpeeds& calibrated_speeds(const Target& target);
/// Puts them there, for this process, too. Throws Error if they cannot be written.
void keep_speeds(const Target& target, const codegen::DeviceSpeeds& speeds);

}  // namespace tw::schedules

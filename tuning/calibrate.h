// The numbers of the model of time, measured: each by a kernel that does little else.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/cost/device_speeds.h"
#include "dsl/schedule.h"
#include "runtime/driver/driver.h"

namespace tw::tuning {

/// A kernel whose time is that of one thing, and which number it tells.
struct CalibrationKernel {
    std::string speed;  ///< of codegen::device_speeds(): "memory_bytes"
    Schedule schedule;
};
/// Small first: a later one's time is taken without what the numbers before it explain.
std::vector<CalibrationKernel> calibration_kernels(const Target& target);

/// The number that so many seconds of the kernel tell; the others are as given. Nothing if none from a thousandth of
/// the given one to a thousand times it has that time. Throws Error if there is no such number.
std::optional<double> speed_by_time(const CalibrationKernel& kernel, double seconds,
                                    const codegen::DeviceSpeeds& known);

struct Calibration {
    codegen::DeviceSpeeds speeds;
    std::string text;  ///< each number, its unit, and an H200's beside it, a line each, and what no time has told
};
/// About ten seconds. Throws Error without a GPU.
Calibration calibrate(const std::shared_ptr<Device>& device);

}  // namespace tw::tuning

// The kernels that tell the numbers of the model of time.
#include "tuning/calibrate.h"

#include <gmock/gmock.h>

#include "codegen/cost/predict_time.h"
#include "support/error.h"
#include "tests/support/expect_error.h"

namespace tw::tuning {
namespace {

using codegen::DeviceSpeeds;

double number_of(const DeviceSpeeds& speeds, const std::string& name) {
    for (const codegen::DeviceSpeed& each : codegen::device_speeds())
        if (name == each.name) return speeds.*each.value;
    ADD_FAILURE() << name;
    return 0;
}

/// Of a device that is unlike an H200 in all numbers, times give back the numbers that they were made by.
TEST(Calibrate, FindsTheNumbersBehindTheTimes) {
    const Target sm_90a = target("sm_90a");
    DeviceSpeeds wanted;
    wanted.memory_bytes *= 0.6, wanted.l2_bytes *= 0.7, wanted.launch *= 1.8, wanted.round_trip *= 1.5;
    wanted.instructions *= 0.8, wanted.specials *= 1.3, wanted.doubles *= 0.1, wanted.blocks *= 0.5;
    DeviceSpeeds found;
    for (const CalibrationKernel& kernel : calibration_kernels(sm_90a)) {
        const double seconds = codegen::predict_time(kernel.schedule.tree(), kernel.schedule.target(), wanted).seconds;
        // Round by round, as each kernel's time has a little of the others' numbers.
        const double told = speed_by_time(kernel, seconds, wanted).value();
        EXPECT_NEAR(told / number_of(wanted, kernel.speed), 1, 0.001) << kernel.speed;
        const double alone = speed_by_time(kernel, seconds, found).value();
        EXPECT_NEAR(alone / number_of(wanted, kernel.speed), 1, 0.25) << kernel.speed;
        for (const codegen::DeviceSpeed& each : codegen::device_speeds())
            if (kernel.speed == each.name) found.*each.value = alone;
    }
}

/// Rather than a number at the end of the range.
TEST(Calibrate, TakesNoNumberFromATimeThatNoneHas) {
    for (const CalibrationKernel& kernel : calibration_kernels(target("sm_90a"))) {
        EXPECT_FALSE(speed_by_time(kernel, 1e-10, {})) << kernel.speed;
        EXPECT_FALSE(speed_by_time(kernel, 1e3, {})) << kernel.speed;
    }
}

TEST(Calibrate, NeedsAGpu) {
    EXPECT_ERROR(calibrate(open_device("emulated")), "has no times; give a GPU");
    EXPECT_ERROR(calibrate(nullptr), "calibrate: no device has no times");
}

TEST(Calibrate, KnowsTheNumbersByName) {
    CalibrationKernel kernel = calibration_kernels(target("sm_90a"))[0];
    kernel.speed = "colour";
    EXPECT_ERROR(speed_by_time(kernel, 1e-6, {}), "there is no speed 'colour'");
}

}  // namespace
}  // namespace tw::tuning

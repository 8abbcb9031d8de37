#include "tuning/calibrate.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "bench/operand_sets.h"
#include "codegen/cost/predict_time.h"
#include "ops/executable.h"
#include "runtime/driver/arch.h"
#include "runtime/driver/timer.h"
#include "schedules/choose.h"
#include "schedules/plain_schedule.h"
#include "support/error.h"

namespace tw::tuning {
namespace {

using codegen::DeviceSpeeds;

CalibrationKernel plain_kernel(const std::string& speed, const Tensor& y, const Target& target) {
    return {speed, schedules::plain_schedule({y}, target)};
}

/// `steps` times the same operation on an element's own value.
template <class Step>
Tensor chain(int64_t elements, Type type, int steps, const Step& step) {
    Tensor x = input("x", type, {elements});
    return compute("y", {elements}, [&](Expr i) {
        Expr value = x(i);
        for (int s = 0; s < steps; ++s) value = step(value);
        return value;
    });
}

CalibrationKernel of_launch(const Target& target) {
    Tensor x = input("x", f32, {1024});
    return plain_kernel("launch", compute("y", {1024}, [&](Expr i) { return 2.0 * x(i); }), target);
}
CalibrationKernel of_memory(const Target& target) {
    const int64_t elements = int64_t{1} << 27;
    Tensor x = input("x", f32, {elements});
    Tensor y = compute("y", {elements}, [&](Expr i) { return 2.0 * x(i); });
    return {"memory_bytes", schedules::choose_schedule({y}, target)};
}
/// Reads 24 MiB again and again, each time from another place.
CalibrationKernel of_second_cache(const Target& target) {
    const int64_t elements = 6 << 20, step = 96 * 1024 + 32;
    Tensor x = input("x", f32, {elements});
    Axis r = reduce_axis("r", 64);
    Tensor y = compute("y", {elements}, [&](Expr i) { return sum(x((i + r * step) % elements), r); });
    return plain_kernel("l2_bytes", y, target);
}
/// Each number says where the next one lies.
CalibrationKernel of_round_trips(const Target& target) {
    const int64_t elements = 1 << 24, lanes = 32;
    Tensor next = input("next", i32, {elements});
    Tensor y = compute("y", {lanes}, [&](Expr i) {
        Expr at = next(i);
        for (int trip = 1; trip < 64; ++trip) at = next(cast(i64, at));
        return at;
    });
    return plain_kernel("round_trip", y, target);
}
CalibrationKernel of_instructions(const Target& target) {
    return plain_kernel("instructions", chain(1 << 21, f32, 512, [](const Expr& v) { return v * 0.5 + 1.0; }), target);
}
CalibrationKernel of_specials(const Target& target) {
    return plain_kernel("specials", chain(1 << 21, f32, 128, [](const Expr& v) { return exp2(v); }), target);
}
CalibrationKernel of_doubles(const Target& target) {
    const auto step = [](const Expr& v) { return v * constant(f64, 0.5) + constant(f64, 1.0); };
    return plain_kernel("doubles", chain(1 << 20, f64, 256, step), target);
}
/// A warp each, which does nothing to speak of.
CalibrationKernel of_blocks(const Target& target) {
    const int64_t elements = 1 << 24;
    Tensor x = input("x", i8, {elements});
    Tensor y = compute("y", {elements}, [&](Expr i) { return cast(i8, cast(i32, x(i)) + 1); });
    Schedule s({y}, target);
    auto [i] = s.loops<1>(y);
    auto [block, lane] = s.split(i, 32, {"block", "lane"});
    s.bind(block, grid.x);
    s.bind(lane, thread);
    return {"blocks", s};
}

double* number(DeviceSpeeds& speeds, const std::string& name) {
    for (const codegen::DeviceSpeed& each : codegen::device_speeds())
        if (name == each.name) return &(speeds.*each.value);
    throw_error(Error, "there is no speed '{}' in the model of time; take a name of device_speeds()", name);
}

}  // namespace

std::vector<CalibrationKernel> calibration_kernels(const Target& target) {
    std::vector<CalibrationKernel> all;
    for (const auto& make :
         {of_launch, of_memory, of_second_cache, of_round_trips, of_instructions, of_specials, of_doubles, of_blocks})
        all.push_back(make(target));
    return all;
}

std::optional<double> speed_by_time(const CalibrationKernel& kernel, double seconds, const DeviceSpeeds& known) {
    const Target target = kernel.schedule.target();
    const codegen::Prediction counted = codegen::predict_time(kernel.schedule.tree(), target);
    DeviceSpeeds tried = known;
    double* value = number(tried, kernel.speed);
    auto predicted = [&](double at) {
        *value = at;
        double all = 0;
        for (const codegen::KernelPrediction& each : counted.kernels)
            all += codegen::predict_kernel(each.name, each.work, target, tried).seconds;
        return all;
    };
    // Predicted times grow with the number, or fall: what was measured is between.
    constexpr double far = 1000;
    double low = *value / far, high = *value * far;
    const double of_low = predicted(low), of_high = predicted(high);
    if (seconds < std::min(of_low, of_high) || seconds > std::max(of_low, of_high)) return {};
    const bool grows = of_high > of_low;
    for (int step = 0; step < 60; ++step) {
        const double middle = std::sqrt(low * high);
        ((predicted(middle) < seconds) == grows ? low : high) = middle;
    }
    return std::sqrt(low * high);
}

namespace {

/// Random numbers, and in integers random places of the array itself.
bool fill_places(const std::string&, HostArray& array, uint64_t seed) {
    if (is_float(array.type)) return false;
    std::mt19937_64 random(seed);
    const size_t width = static_cast<size_t>(bytes_of(array.type)), count = array.bytes.size() / width;
    for (size_t i = 0; i < count; ++i)
        store_element(make_value(array.type, static_cast<int64_t>(random() % std::min<size_t>(count, 1 << 30))),
                      &array.bytes[i * width]);
    return true;
}

/// Of one run of many in a graph.
double seconds_of(const Schedule& schedule, const std::shared_ptr<Device>& device) {
    constexpr int runs = 20;
    Executable executable(build(schedule), device);
    bench::OperandSets operands(executable.program().tree(), *device, 1, fill_places);
    const std::vector<Launch> one = executable.prepare(operands.sets()[0]);
    std::vector<Launch> many;
    for (int run = 0; run < runs; ++run) many.insert(many.end(), one.begin(), one.end());
    Graph graph = device->record(many);
    const auto replay = [&](const Stream& stream) { graph.run(stream); };
    return time_on(*device, replay, {.warmups = 3, .samples = 9}).median_seconds / runs;
}

}  // namespace

Calibration calibrate(const std::shared_ptr<Device>& device) {
    if (!device || device->kind() != DeviceKind::Cuda)
        throw_error(Error, "calibrate: {} has no times; give a GPU, as open_device(\"cuda\")",
                    device ? device->name() : "no device");
    const DeviceSpeeds before;
    Calibration result{before, {}};
    std::string left_out;
    for (const CalibrationKernel& kernel : calibration_kernels(target_of(*device))) {
        const double seconds = seconds_of(kernel.schedule, device);
        if (const auto told = speed_by_time(kernel, seconds, result.speeds))
            *number(result.speeds, kernel.speed) = *told;
        else
            left_out += fmt::format("{}: {:.3g} s of its kernel are of no such number; an H200's is taken\n",
                                    kernel.speed, seconds);
        device->release_pool();
    }
    for (const codegen::DeviceSpeed& each : codegen::device_speeds())
        result.text += fmt::format("{:<14} {:>12.4g} {:<10} H200: {:.4g}\n", each.name, result.speeds.*each.value,
                                   each.unit, before.*each.value);
    result.text += left_out;
    return result;
}

}  // namespace tw::tuning

#include "ops/step/explain_step.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "codegen/cost/predict_time.h"
#include "ops/nest_costs.h"
#include "ops/step/kept_memory.h"
#include "schedules/calibrated_speeds.h"
#include "support/error.h"

namespace tw {
namespace {

double group_flops(const StepGroup& group) {
    double flops = 0;
    for (const LoopCost& each : nest_costs(group.selection->program.tree()))
        if (each.depth == 0) flops += each.cost.flops;
    return flops;
}

/// Seconds of each launch, of one run of all.
std::vector<double> time_each(Device& device, const std::vector<Launch>& launches) {
    const Stream stream = device.default_stream();
    std::vector<Event> events;
    for (size_t k = 0; k <= launches.size(); ++k) events.push_back(device.create_event());
    events[0].record(stream);
    for (size_t k = 0; k < launches.size(); ++k) {
        launches[k].run(stream);
        events[k + 1].record(stream);
    }
    events.back().synchronize();
    std::vector<double> seconds;
    for (size_t k = 0; k < launches.size(); ++k) seconds.push_back(events[k + 1].seconds_since(events[k]));
    return seconds;
}

std::string row_text(const std::string& group, const KernelCost& cost, bool measured, bool is_speed) {
    std::string text = fmt::format("{:>5}  {:<40} {:>12.0f} {:>10.2f}  {:<14}", group, cost.name, cost.bytes,
                                   cost.seconds * 1e6, cost.bound);
    if (measured) text += fmt::format(" {:>11.2f}", cost.measured * 1e6);
    if (measured && is_speed && cost.measured > 0)
        text += fmt::format(" {:>7.0f}% {:>7.0f}%", 100 * cost.memory_seconds / cost.measured,
                            100 * cost.seconds / cost.measured);
    return text + "\n";
}

std::string table(const StepPlan& plan, std::vector<KernelCost> costs, bool sorted, bool measured, bool is_speed) {
    std::map<size_t, int> sizes;
    double flops = 0;
    for (const StepGroup& group : plan.groups) {
        ++sizes[group.operations.size()];
        flops += group_flops(group);
    }
    std::string text = fmt::format("{} groups, {} kernels, {:.3g} FLOPs\n", plan.groups.size(), costs.size(), flops);
    for (const auto& [size, count] : sizes) text += fmt::format("groups of {} operations: {}\n", size, count);
    KernelCost sum;
    sum.name = "sum";
    for (const KernelCost& cost : costs) {
        sum.bytes += cost.bytes;
        sum.seconds += cost.seconds;
        sum.memory_seconds += cost.memory_seconds;
        sum.measured += cost.measured;
    }
    if (sorted)
        std::ranges::stable_sort(costs, std::greater(),
                                 [&](const KernelCost& cost) { return measured ? cost.measured : cost.seconds; });
    text += fmt::format("{:>5}  {:<40} {:>12} {:>10}  {:<14}", "group", "kernel", "bytes", "model us", "bound by");
    if (measured) text += fmt::format(" {:>11}", is_speed ? "us" : "emulated us");
    if (measured && is_speed) text += fmt::format(" {:>8} {:>8}", "memory", "model");
    text += "\n";
    for (const KernelCost& cost : costs) text += row_text(std::to_string(cost.group), cost, measured, is_speed);
    return text + row_text("", sum, measured, is_speed);
}

}  // namespace

std::vector<KernelCost> kernel_costs(const StepPlan& plan) {
    std::map<const Selection*, codegen::Prediction> known;
    std::vector<KernelCost> costs;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
        const Program& program = plan.groups[g].selection->program;
        const codegen::DeviceSpeeds& speeds = schedules::calibrated_speeds(program.target());
        const auto [found, is_new] = known.try_emplace(plan.groups[g].selection.get());
        if (is_new) found->second = codegen::predict_time(program.tree(), program.target(), speeds);
        for (const codegen::KernelPrediction& kernel : found->second.kernels)
            costs.push_back({.group = g,
                             .name = kernel.name,
                             .bytes = kernel.work.memory_bytes,
                             .seconds = kernel.seconds,
                             .memory_seconds = kernel.work.memory_bytes / speeds.memory_bytes,
                             .bound = kernel.bound});
    }
    return costs;
}

std::vector<KernelCost> measured_costs(const PlannedStep& step, int runs, std::source_location where) {
    user_check(runs >= 1, where, "measured_costs: {} runs; it takes at least one", runs);
    std::vector<KernelCost> costs = kernel_costs(step.plan());
    const std::vector<Launch>& launches = step.launches();
    internal_check(costs.size() == launches.size(), "a step has another number of launches than kernels");
    if (launches.empty()) return costs;
    Device& device = *step.buffer(step.plan().values[static_cast<size_t>(step.plan().results[0])].name).device();
    const KeptMemory kept(step);
    std::vector<std::vector<double>> samples(launches.size());
    for (int run = 0; run <= runs; ++run) {  // the first one warms up
        const std::vector<double> seconds = time_each(device, launches);
        for (size_t k = 0; run > 0 && k < seconds.size(); ++k) samples[k].push_back(seconds[k]);
        kept.put_back();
    }
    for (size_t k = 0; k < costs.size(); ++k) {
        std::ranges::sort(samples[k]);
        costs[k].measured = samples[k][samples[k].size() / 2];
    }
    return costs;
}

std::string explain(const StepPlan& plan, const ExplainOptions& options) {
    return table(plan, kernel_costs(plan), options.sorted, false, false);
}

std::string explain(const PlannedStep& step, const ExplainOptions& options, std::source_location where) {
    const std::vector<KernelCost> costs = measured_costs(step, options.runs, where);
    const Buffer& any = step.buffer(step.plan().values[static_cast<size_t>(step.plan().results[0])].name);
    return table(step.plan(), costs, options.sorted, true, any.device()->kind() == DeviceKind::Cuda);
}

}  // namespace tw

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/ranges.h>

#include "ops/step/explain_step.h"

namespace tw {
namespace {

/// What explain() prints of.
struct Explained {
    const StepPlan& plan;
    std::vector<KernelCost> costs;  // in launch order
    ExplainOptions options;
    bool is_measured = false, is_speed = false;
    double replay = 0;

    std::string measured_heading() const { return is_speed ? "us" : "emulated us"; }
    /// What shares of the device's speeds are of.
    double seconds_of(const KernelCost& cost) const {
        return is_speed && cost.measured > 0 ? cost.measured : cost.seconds;
    }
};

std::string kernel_row(const Explained& step, const std::string& group, const KernelCost& cost) {
    std::string text = fmt::format("{:>5}  {:<40} {:>12.0f} {:>12.4g} {:>10.2f}  {:<14}", group, cost.name, cost.bytes,
                                   cost.flops, cost.seconds * 1e6, cost.bound);
    if (step.is_measured) text += fmt::format(" {:>11.2f}", cost.measured * 1e6);
    const double seconds = step.seconds_of(cost);
    text += fmt::format(" {:>7.1f}% {:>7.1f}%  {:<7}", 100 * cost.memory_seconds / seconds,
                        100 * cost.compute_seconds / seconds,
                        cost.compute_seconds > cost.memory_seconds ? "compute" : "memory");
    if (step.is_measured && step.is_speed) text += fmt::format(" {:>7.0f}%", 100 * cost.seconds / seconds);
    return text + "\n";
}

/// "z (blocks.0.up), h (blocks.0), loss".
std::string operations_text(const KernelCost& cost) {
    std::string text;
    for (size_t k = 0; k < cost.operations.size(); ++k) {
        text += (k > 0 ? ", " : "") + cost.operations[k];
        if (!cost.scopes[k].empty()) text += fmt::format(" ({})", cost.scopes[k]);
    }
    return text;
}

std::string kernels_table(const Explained& step) {
    std::vector<KernelCost> rows = step.costs;
    if (step.options.sorted)
        std::ranges::stable_sort(rows, std::greater(), [&](const KernelCost& cost) {
            return step.is_measured ? cost.measured : cost.seconds;
        });
    std::string text = fmt::format("{:>5}  {:<40} {:>12} {:>12} {:>10}  {:<14}", "group", "kernel", "bytes", "FLOPs",
                                   "model us", "bound by");
    if (step.is_measured) text += fmt::format(" {:>11}", step.measured_heading());
    text += fmt::format(" {:>8} {:>8}  {:<7}", "memory", "compute", "nearer");
    if (step.is_measured && step.is_speed) text += fmt::format(" {:>8}", "model");
    text += "\n";
    KernelCost sum{.name = "sum"};
    for (const KernelCost& cost : rows) {
        sum.bytes += cost.bytes;
        sum.flops += cost.flops;
        sum.seconds += cost.seconds;
        sum.memory_seconds += cost.memory_seconds;
        sum.compute_seconds += cost.compute_seconds;
        sum.measured += cost.measured;
        text += kernel_row(step, std::to_string(cost.group), cost);
        text += fmt::format("       of {}; {}\n", operations_text(cost), cost.why);
    }
    if (rows.empty()) return text;
    text += kernel_row(step, "", sum);
    if (!step.is_measured) return text;
    return text + fmt::format("the whole step, one launch: {:.2f} {}, {:.2f} {} than its kernels launched one by one\n",
                              step.replay * 1e6, step.measured_heading(), std::abs(step.replay - sum.measured) * 1e6,
                              step.replay > sum.measured ? "more" : "less");
}

std::string kinds_table(const Explained& step) {
    std::string text = fmt::format("{:<16} {:>10} {:>8} {:>10}", "kind", "operations", "groups", "model us");
    if (step.is_measured) text += fmt::format(" {:>11}", step.measured_heading());
    text += "\n";
    for (const KindCost& kind : costs_by_kind(step.plan, step.costs)) {
        text += fmt::format("{:<16} {:>10} {:>8} {:>10.2f}", name_of(kind.kind), kind.operations, kind.groups,
                            kind.seconds * 1e6);
        if (step.is_measured) text += fmt::format(" {:>11.2f}", kind.measured * 1e6);
        text += "\n";
    }
    return text;
}

std::string explained_text(const Explained& step) {
    std::map<size_t, int> sizes;
    for (const StepGroup& group : step.plan.groups) ++sizes[group.operations.size()];
    double flops = 0;
    for (const KernelCost& cost : step.costs) flops += cost.flops;
    std::string text = fmt::format("{} groups, {} kernels, {:.4g} FLOPs as declared, a multiply-add counting two\n",
                                   step.plan.groups.size(), step.costs.size(), flops);
    for (const auto& [size, count] : sizes) text += fmt::format("groups of {} operations: {}\n", size, count);
    text += kinds_table(step) + kernels_table(step);
    for (const std::string& what : step.plan.laid_out) text += fmt::format("laid out: {}\n", what);
    if (step.options.with_neighbours) text += neighbours_text(step.plan);
    return text;
}

}  // namespace

std::string explain(const StepPlan& plan, const ExplainOptions& options) {
    return explained_text({.plan = plan, .costs = kernel_costs(plan), .options = options});
}

std::string explain(const PlannedStep& step, const ExplainOptions& options, std::source_location where) {
    const Buffer& any = step.buffer(step.plan().values[static_cast<size_t>(step.plan().results[0])].name);
    return explained_text({.plan = step.plan(),
                           .costs = measured_costs(step, options.runs, where),
                           .options = options,
                           .is_measured = true,
                           .is_speed = any.device()->kind() == DeviceKind::Cuda,
                           .replay = measured_replay(step, options.runs, where)});
}

std::string PlannedStep::explain(const ExplainOptions& options, std::source_location where) const {
    return tw::explain(*this, options, where);
}

}  // namespace tw

#include "ops/inspect.h"

#include <fmt/format.h>

#include "codegen/cost/predict_time.h"
#include "codegen/thread_ir/thread_walk.h"
#include "ops/kernel_pictures.h"
#include "ops/program.h"
#include "schedules/calibrated_speeds.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr size_t events_shown = 2500;  // of a thread: some tiles

int64_t register_bytes(const codegen::ThreadKernel& kernel) {
    int64_t bytes = 0;
    codegen::visit(kernel.body, [&](const codegen::ThreadStmt& stmt) {
        const auto* declared = stmt.as<codegen::ThreadDeclare>();
        if (!declared) return;
        int64_t elements = 1;
        for (const Expr& extent : declared->buffer->shape) elements *= require_constant(extent);
        bytes += elements * bytes_of(declared->buffer->type);
    });
    return bytes;
}

KernelInspection inspect_kernel(const codegen::ThreadKernel& kernel, const codegen::KernelText& text,
                                const Target& target) {
    const codegen::KernelPrediction time =
        codegen::predict_kernel(kernel, target, schedules::calibrated_speeds(target));
    KernelInspection result{.name = text.name,
                            .seconds = time.seconds,
                            .bound = time.bound,
                            .threads = text.threads,
                            .shared_bytes = text.shared_bytes,
                            .register_bytes = register_bytes(kernel),
                            .shared_arrays = shared_arrays(kernel),
                            .shared_memory = shared_memory_picture(kernel)};
    codegen::SignalSimulation simulation = codegen::simulate_signals(kernel, events_shown);
    if (!simulation.simulated) return result;
    result.timeline = timeline_picture(simulation);
    result.timeline_cycles = simulation.cycles;
    result.timeline_is_whole = simulation.whole;
    return result;
}

/// "131 k": three digits, of any magnitude.
std::string short_number(double value) {
    if (value == 0) return "-";
    for (const char* unit : {"", " k", " M", " G"}) {
        if (value < 999.5) return fmt::format("{:.3g}{}", value, unit);
        value /= 1000;
    }
    return fmt::format("{:.3g} T", value);
}

std::string cost_table(const std::vector<LoopCost>& costs) {
    std::string text = fmt::format("{:<44} {:>10} {:>14} {:>14} {:>10}\n", "one run of", "iterations", "global bytes",
                                   "shared bytes", "FLOPs");
    for (const LoopCost& row : costs) {
        std::string level = row.level.empty() ? "" : fmt::format(" ({})", row.level);
        text +=
            fmt::format("{:<44} {:>10} {:>14} {:>14} {:>10}\n", std::string(2 * row.depth, ' ') + row.name + level,
                        row.depth == 0 ? "" : fmt::format("{}", row.iterations), short_number(row.cost.global_bytes),
                        short_number(row.cost.shared_bytes), short_number(row.cost.flops));
    }
    return text;
}

std::string kernel_table(const std::vector<KernelInspection>& kernels) {
    std::string text = fmt::format("{:<44} {:>10} {:>14} {:>20} {:>12}  {}\n", "a block of", "threads", "shared bytes",
                                   "bytes in registers", "ms by model", "most of it");
    for (const KernelInspection& kernel : kernels)
        text += fmt::format("{:<44} {:>10} {:>14} {:>20} {:>12.4f}  {}\n", kernel.name, kernel.threads,
                            kernel.shared_bytes, kernel.register_bytes, kernel.seconds * 1e3, kernel.bound);
    return text;
}

std::string pictures(const KernelInspection& kernel) {
    std::string text;
    if (!kernel.shared_memory.empty())
        text += fmt::format("Shared memory of {}\n\n{}\n", kernel.name, kernel.shared_memory);
    if (kernel.timeline.empty()) return text;
    return text + fmt::format(
                      "Who waits for whom in {}: {} of one block, {} cycles by a coarse model. M: products under way; "
                      "L: boxes under way; w: other work; a dot: waits\n\n{}\n",
                      kernel.name, kernel.timeline_is_whole ? "all" : "the first tiles", kernel.timeline_cycles,
                      kernel.timeline);
}

}  // namespace

Inspection inspect(const Schedule& schedule) {
    Program program = build(schedule);
    Inspection result{.formulas = {},
                      .nest = schedule.to_string(),
                      .costs = nest_costs(schedule.tree()),
                      .kernels = {},
                      .steps = schedule.trace_as_cpp(),
                      .notes = program.notes()};
    for (const auto& operation : operations_of(schedule.outputs())) result.formulas += to_string(*operation) + "\n";
    std::vector<codegen::ThreadKernel> kernels = kernels_before_printing(schedule.tree(), schedule.target());
    internal_check(kernels.size() == program.kernels().size(), "{} kernels are printed, {} were seen",
                   program.kernels().size(), kernels.size());
    for (size_t k = 0; k < kernels.size(); ++k)
        result.kernels.push_back(inspect_kernel(kernels[k], program.kernels()[k], schedule.target()));
    return result;
}

std::string to_string(const Inspection& inspection) {
    std::string text = fmt::format("{}\nThe loop nest\n\n{}\n", inspection.formulas, inspection.nest);
    text += fmt::format(
        "What each loop moves and computes: masked iterations count, fills of shared memory once a block\n\n{}\n",
        cost_table(inspection.costs));
    text += fmt::format(
        "What each kernel needs: bytes in registers are those of a thread's arrays; ms are by the model of time, of "
        "a GPU that does nothing else\n\n{}\n",
        kernel_table(inspection.kernels));
    for (const KernelInspection& kernel : inspection.kernels) text += pictures(kernel);
    text += fmt::format("The steps\n\n{}\n", inspection.steps);
    return text + fmt::format("Defaults taken\n\n{}", inspection.notes);
}

}  // namespace tw

#include "verify/run_kernels.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"
#include "ops/executable.h"
#include "runtime/emulator/emulator.h"

namespace tw::fuzz {
namespace {

KernelResult run_job(const KernelJob& job, const Program& program, const std::shared_ptr<Device>& device) {
    KernelResult result;
    Executable executable(program, device);
    for (const Bindings& bindings : *job.launches) result.outputs.push_back(run_on(executable, bindings));
    return result;
}

constexpr size_t kKernelsPerCompilation = 32;

/// What does not compile together is compiled again, and reported, when it is loaded by itself.
std::vector<std::shared_ptr<const emulator::Module>> compiled_together(
    const std::vector<std::unique_ptr<Program>>& programs) {
    std::vector<emulator::Source> sources;
    for (const auto& program : programs)
        for (size_t k = 0; program && k < program->kernels().size(); ++k)
            sources.push_back({program->kernels()[k].name, program->kernels()[k].cuda, program->line_notes(k)});
    std::vector<std::shared_ptr<const emulator::Module>> modules;
    for (size_t first = 0; first < sources.size(); first += kKernelsPerCompilation) {
        std::span<const emulator::Source> part(sources.begin() + first,
                                               std::min(kKernelsPerCompilation, sources.size() - first));
        try {
            for (auto& module : emulator::compile_together(part)) modules.push_back(std::move(module));
        } catch (const emulator::CompileFailed&) {
        }
    }
    return modules;
}

}  // namespace

std::vector<KernelResult> run_on_emulator(const std::vector<KernelJob>& jobs) {
    std::vector<KernelResult> results(jobs.size());
    std::vector<std::unique_ptr<Program>> programs(jobs.size());
    for (size_t j = 0; j < jobs.size(); ++j) {
        try {
            programs[j] = std::make_unique<Program>(build(*jobs[j].schedule));
        } catch (const Error& error) {
            results[j] = {{}, error.what(), true};
        } catch (const std::exception& error) {
            results[j] = {{}, fmt::format("build: {}", error.what()), false};
        }
    }
    auto modules = compiled_together(programs);  // kept while each kernel is looked up
    std::shared_ptr<Device> device = open_device("emulated");
    for (size_t j = 0; j < jobs.size(); ++j) {
        if (!programs[j]) continue;
        try {
            results[j] = run_job(jobs[j], *programs[j], device);
        } catch (const std::exception& error) {
            results[j] = {{}, fmt::format("{}\n{}", error.what(), programs[j]->cuda()), false};
        }
    }
    return results;
}

}  // namespace tw::fuzz

#include "verify/run_kernels.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"
#include "ops/executable.h"
#include "runtime/emulator/emulator.h"
#include "support/error.h"
#include "verify/workers.h"

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

namespace {

/// Undefined where there is a result already, why not.
std::vector<std::unique_ptr<Program>> built(const std::vector<KernelJob>& jobs, std::vector<KernelResult>& results) {
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
    return programs;
}

void run_all(const std::vector<KernelJob>& jobs, const std::vector<std::unique_ptr<Program>>& programs,
             const std::shared_ptr<Device>& device, std::vector<KernelResult>& results) {
    for (size_t j = 0; j < jobs.size(); ++j) {
        if (!programs[j]) continue;
        try {
            results[j] = run_job(jobs[j], *programs[j], device);
        } catch (const std::exception& error) {
            results[j] = {{}, fmt::format("{}\n{}", error.what(), programs[j]->cuda()), false};
        }
    }
}

/// Why a process cannot open it, or nothing.
std::string refusal_of(const std::string& which) {
    std::string refusal;
    run_in_workers(
        {{0}}, {.workers = 1},
        [&](const std::vector<int64_t>&, const Tell& tell) {
            std::string text;
            try {
                open_device(which);
            } catch (const std::exception& error) {
                text = error.what();
            }
            tell({Message::Kind::Result, 0, text});
        },
        [&](const Message& message) {
            if (message.kind == Message::Kind::Result) refusal = message.text;
        },
        [&](int64_t, const std::string& how, const std::string&) { refusal = how; });
    return refusal;
}

}  // namespace

std::vector<KernelResult> run_on_emulator(const std::vector<KernelJob>& jobs) {
    std::vector<KernelResult> results(jobs.size());
    const auto programs = built(jobs, results);
    auto modules = compiled_together(programs);  // kept while each kernel is looked up
    run_all(jobs, programs, open_device("emulated"), results);
    return results;
}

RunKernels run_on_device(const std::string& which, std::source_location where) {
    if (which == "emulated") return run_on_emulator;
    const std::string refusal = refusal_of(which);
    user_check(refusal.empty(), where, "kernels cannot run on '{}': {}", which, refusal);
    return [which](const std::vector<KernelJob>& jobs) {
        std::vector<KernelResult> results(jobs.size());
        const auto programs = built(jobs, results);
        run_all(jobs, programs, open_device(which), results);
        return results;
    };
}

}  // namespace tw::fuzz

// tw run: kernels on a device, checked against float64.
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/driver/arch.h"
#include "runtime/driver/timer.h"
#include "support/progress.h"
#include "tools/commands.h"
#include "tools/numbers.h"
#include "tools/output.h"

namespace tw {
namespace {

struct RunOptions {
    std::vector<std::string> names;
    std::string device;
    uint64_t seed = 1;
    bool all = false, json = false;
};

struct RunResult {
    bool correct = true;
    double seconds = 0;
    std::string text;
    nlohmann::json outputs = nlohmann::json::array();
};

Timing time_of(const Executable& executable) {
    bool is_gpu = executable.device()->kind() == DeviceKind::Cuda;
    auto work = [&](const Stream& stream) {
        for (const Launch& launch : executable.launches()) launch.run(stream);
    };
    return time_on(*executable.device(), work, {.warmups = is_gpu ? 3 : 0, .samples = is_gpu ? 20 : 1});
}

RunResult run_kernel(const schedules::CatalogEntry& entry, const std::shared_ptr<Device>& device, uint64_t seed) {
    Schedule schedule = entry.make(target_of(*device));
    Program program = build(schedule);
    Executable executable(program, device);
    Bindings bindings = random_bindings(schedule.outputs(), seed);
    if (entry.give_tables) entry.give_tables(bindings, seed);
    std::vector<HostArray> got = run_on(executable, bindings);
    RunResult result;
    for (size_t k = 0; k < got.size(); ++k) {
        CheckResult check = check_output(
            schedule.outputs()[k], bindings, got[k],
            {.approximate = program.approximate(), .roundings = schedule.roundings(), .rounded = schedule.rounded()});
        result.correct = result.correct && check.ok;
        const std::string of = got.size() > 1 ? schedule.outputs()[k].name() + ": " : "";
        result.text += (k == 0 ? "" : "; ") + of + check.text;
        result.outputs.push_back({{"name", schedule.outputs()[k].name()},
                                  {"correct", check.ok},
                                  {"error", check.error},
                                  {"plain_error", check.plain_error},
                                  {"unit_error", check.unit_error},
                                  {"elements", check.elements}});
    }
    result.seconds = time_of(executable).median_seconds;
    return result;
}

std::string result_text(const schedules::CatalogEntry& entry, const RunResult& result, const Device& device,
                        bool as_json) {
    double ms = result.seconds * 1e3, rate = result.seconds > 0 ? entry.flops / result.seconds * 1e-9 : 0;
    if (!as_json)
        return fmt::format("{:<32} {:>10.4f} ms {:>10} GFLOP/s  {}", entry.name, ms, rate_text(entry.flops, rate),
                           result.text);
    return json_line({{"kernel", entry.name},
                      {"device", device.name()},
                      {"correct", result.correct},
                      {"ms", ms},
                      {"gflops", rate},
                      {"outputs", result.outputs},
                      {"check", result.text}});
}

std::vector<const schedules::CatalogEntry*> chosen_kernels(const RunOptions& options) {
    std::vector<const schedules::CatalogEntry*> kernels;
    for (const std::string& name : options.names) kernels.push_back(&kernel_named(name));
    if (options.all)
        for (const auto* entry : all_kernels()) kernels.push_back(entry);
    if (kernels.empty()) throw CLI::ValidationError("run: name at least one kernel, or --all");
    return kernels;
}

int run(const RunOptions& options) {
    auto kernels = chosen_kernels(options);
    ChosenDevice chosen =
        options.device.empty() ? best_device() : ChosenDevice{open_device(options.device), options.device};
    if (!options.json) print("running on {}\n", chosen.reason);
    if (!options.json && chosen.device->kind() == DeviceKind::Emulated) print("{}\n", emulated_times);
    Progress progress("run", int64_t(kernels.size()));
    int status = StatusDone;
    for (size_t k = 0; k < kernels.size(); ++k) {
        progress.show(int64_t(k), kernels[k]->name);
        RunResult result = run_kernel(*kernels[k], chosen.device, options.seed);
        progress.clear();
        print("{}\n", result_text(*kernels[k], result, *chosen.device, options.json));
        if (!result.correct) status = StatusFailed;
    }
    return status;
}

}  // namespace

void add_run_command(CLI::App& app, int& status) {
    auto o = std::make_shared<RunOptions>();
    auto* command = app.add_subcommand("run", "run kernels on the GPU or the emulator and check them against float64");
    command->add_option("kernels", o->names, "names of `tw list`, or product_MxNxK");
    command->add_flag("--all", o->all, "every kernel of `tw list`");
    command->add_option("--device", o->device, "cuda, cuda:1 or emulated; the best there is if not given");
    command->add_option("--seed", o->seed, "of the random inputs")->check(seed_number());
    command->add_flag("--json", o->json, "a line of JSON a kernel");
    add_load_option(command);
    command->callback([o, &status] { status = run(*o); });
}

}  // namespace tw

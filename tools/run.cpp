// tw run: a kernel on a device, checked against float64.
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/timer.h"
#include "tools/commands.h"

namespace tw {
namespace {

struct RunOptions {
    std::vector<std::string> names;
    std::string device;
    uint64_t seed = 1;
    bool all = false, json = false;
};

bool run_one(const schedules::CatalogEntry& entry, const ChosenDevice& chosen, const RunOptions& options) {
    Schedule schedule = entry.make(target(chosen.device->kind() == DeviceKind::Cuda ? chosen.device->arch() : "sm_90a"));
    Program program = build(schedule);
    Executable executable(program, chosen.device);
    Bindings bindings = random_bindings(schedule.outputs(), options.seed);
    std::vector<HostArray> got = run_on(executable, bindings);
    bool ok = true, approximate = false;
    for (const auto& kernel : program.kernels()) approximate |= kernel.approximate;
    std::string text;
    for (size_t k = 0; k < got.size(); ++k) {
        CheckResult check = check_output(schedule.outputs()[k], bindings, got[k], approximate);
        ok &= check.ok;
        text += (text.empty() ? "" : "; ") + check.text;
    }
    bool gpu = chosen.device->kind() == DeviceKind::Cuda;
    auto work = [&](const Stream& stream) {
        for (const Launch& launch : executable.launches()) launch.run(stream);
    };
    Timing timing = time_on(*chosen.device, work, {.warmups = gpu ? 3 : 0, .samples = gpu ? 20 : 1, .before_sample = {}});
    double ms = timing.median_seconds * 1e3, rate = entry.flops / timing.median_seconds * 1e-9;
    if (options.json)
        std::cout << nlohmann::json{{"kernel", entry.name}, {"device", chosen.device->name()}, {"correct", ok}, {"ms", ms}, {"gflops", rate}, {"check", text}}.dump() << "\n";
    else
        fmt::print("{:<32} {:>10.4f} ms {:>10.1f} GFLOP/s  {}\n", entry.name, ms, rate, text);
    return ok;
}

}  // namespace

void add_run_commands(CLI::App& app, int& status) {
    auto o = std::make_shared<RunOptions>();
    auto* run = app.add_subcommand("run", "run kernels on the GPU or the emulator and check them against float64");
    run->add_option("kernels", o->names, "names of `tw list`, or product_MxNxK");
    run->add_flag("--all", o->all, "every kernel of `tw list`");
    run->add_option("--device", o->device, "cuda, cuda:1 or emulated; the best there is if not given");
    run->add_option("--seed", o->seed, "of the random inputs");
    run->add_flag("--json", o->json, "a line of JSON a kernel");
    run->callback([o, &status] {
        ChosenDevice chosen = o->device.empty() ? best_device() : ChosenDevice{open_device(o->device), o->device};
        if (!o->json) fmt::print("running on {}\n", chosen.reason);
        std::vector<std::string> names = o->names;
        if (o->all)
            for (const auto& entry : schedules::catalog()) names.push_back(entry.name);
        if (names.empty()) throw CLI::ValidationError("run: name at least one kernel, or --all");
        for (const std::string& name : names)
            if (!run_one(kernel_named(name), chosen, *o)) status = 1;
    });
}

}  // namespace tw

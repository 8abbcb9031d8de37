// tw bench: how fast kernels are on this machine, beside a copy of equal bytes.
#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/kernel_case.h"
#include "runtime/driver/copy_bandwidth.h"
#include "tools/commands.h"
#include "tools/numbers.h"
#include "tools/output.h"

namespace tw {
namespace {

struct BenchOptions {
    std::vector<std::string> names;
    std::string device;
    int rounds = 9;
    bool json = false;
};

struct BenchResult {
    double seconds = 0, bytes = 0, flops = 0;
    std::optional<double> copy_seconds = {};  ///< a copy of equal bytes takes; on a GPU only
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// Runs of a burst that takes about 15 ms.
int64_t runs_of_burst(double seconds) {
    return static_cast<int64_t>(std::clamp(0.015 / std::max(seconds, 1e-6), 3.0, 200.0));
}

BenchResult bench_kernel(const schedules::CatalogEntry& entry, const std::shared_ptr<Device>& device, int rounds) {
    bench::KernelCase kernel(entry, device, {.kernel = entry.name});
    BenchResult result{.bytes = kernel.facts()["bytes"], .flops = entry.flops};
    if (device->kind() != DeviceKind::Cuda) {
        result.seconds = kernel.burst(1);
        return result;
    }
    CopyBandwidth copy(device, result.bytes);
    const int64_t kernel_runs = runs_of_burst(kernel.burst(3)), copy_runs = runs_of_burst(copy.burst(3));
    std::vector<double> kernel_seconds, copy_seconds;
    for (int round = 0; round < rounds; ++round) {
        kernel_seconds.push_back(kernel.burst(kernel_runs));
        copy_seconds.push_back(copy.burst(copy_runs));
    }
    result.seconds = median(kernel_seconds);
    result.copy_seconds = median(copy_seconds);
    return result;
}

nlohmann::json result_json(const std::string& name, const Device& device, const BenchResult& result) {
    auto rate = [&](double amount) {
        return result.seconds > 0 ? nlohmann::json(amount / result.seconds * 1e-9) : nullptr;
    };
    nlohmann::json json{{"kernel", name},
                        {"device", device.name()},
                        {"ms", result.seconds * 1e3},
                        {"gb_per_s", rate(result.bytes)},
                        {"gflops", rate(result.flops)},
                        {"copy_share", nullptr}};
    if (result.copy_seconds && result.seconds > 0) json["copy_share"] = *result.copy_seconds / result.seconds;
    return json;
}

std::string result_line(const nlohmann::json& json, double flops) {
    auto number = [&](const char* key) { return json[key].is_null() ? 0.0 : json[key].get<double>(); };
    std::string line =
        fmt::format("{:<32} {:>10.4f} ms {:>9.1f} GB/s {:>10} GFLOP/s", json["kernel"].get<std::string>(), number("ms"),
                    number("gb_per_s"), rate_text(flops, number("gflops")));
    return line + (json["copy_share"].is_null() ? "" : fmt::format("  {:.3f} of a copy", number("copy_share")));
}

void bench_all(const BenchOptions& options) {
    std::vector<const schedules::CatalogEntry*> kernels;
    for (const std::string& name : options.names) kernels.push_back(&kernel_named(name));
    ChosenDevice chosen =
        options.device.empty() ? best_device() : ChosenDevice{open_device(options.device), options.device};
    if (!options.json) print("running on {}\n", chosen.reason);
    if (!options.json && chosen.device->kind() == DeviceKind::Emulated)
        print("{}, and there is no copy to compare with\n", emulated_times);
    for (const auto* kernel : kernels) {
        BenchResult result = bench_kernel(*kernel, chosen.device, options.rounds);
        nlohmann::json json = result_json(kernel->name, *chosen.device, result);
        print("{}\n", options.json ? json_line(json) : result_line(json, result.flops));
    }
}

}  // namespace

void add_bench_command(CLI::App& app) {
    auto o = std::make_shared<BenchOptions>();
    auto* command = app.add_subcommand(
        "bench",
        "time of kernels, their rate, and the share of what a copy of equal bytes reaches; see bench/compare.py");
    command->add_option("kernels", o->names, "names of `tw list`, or product_MxNxK")->required();
    command->add_option("--device", o->device, "cuda, cuda:1 or emulated; the best there is if not given");
    command->add_option("--rounds", o->rounds, "bursts of the kernel and of the copy in turns; the median counts")
        ->check(whole_number(1, 1000000))
        ->capture_default_str();
    command->add_flag("--json", o->json, "a line of JSON a kernel");
    add_load_option(command);
    command->callback([o] { bench_all(*o); });
}

}  // namespace tw

#include "runtime/driver/doctor.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/compile/cubin_cache.h"
#include "runtime/driver/cuda_device.h"
#include "runtime/driver/host_compiler.h"

namespace tw {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }  // 13000

LibraryHealth examine_driver(std::vector<DeviceHealth>& devices) {
    LibraryHealth health{.name = "CUDA driver", .path = "", .version = "", .problem = "", .attempts = {}};
    Library library = find_library(driver_spec());
    health.attempts = library.attempts;
    health.found = bool(library);
    health.path = library.path;
    try {
        Driver driver = start_driver(library);
        int version = 0, count = 0;
        driver.call.driver_get_version(&version);
        health.version = "CUDA " + version_text(version);
        driver.call.device_get_count(&count);
        for (int i = 0; i < count; ++i) {
            DeviceProperties p = cuda_properties(driver, i);
            devices.push_back({i, p.name, p.arch, p.memory_bytes});
        }
    } catch (const Error& error) {
        health.problem = health.found ? error.what() : "not found";
    }
    return health;
}

LibraryHealth examine_nvrtc() {
    LibraryHealth health{.name = "NVRTC", .path = "", .version = "", .problem = "", .attempts = {}};
    Library library = find_library(nvrtc_spec());
    health.attempts = library.attempts;
    health.found = bool(library);
    health.path = library.path;
    try {
        Nvrtc nvrtc = start_nvrtc(library);
        health.version = fmt::format("{}.{}", nvrtc.major, nvrtc.minor);
        // math.h's functions are in the builtins library, which is a file of its own.
        compile_kernel({.source = "extern \"C\" __global__ void probe(float* x) { *x = sinf(*x); }\n",
                        .name = "doctor.cu",
                        .use_disk = false},
                       nvrtc);
    } catch (const Error& error) {
        health.problem = health.found ? error.what() : "not found";
    }
    return health;
}

CacheHealth examine_cache() {
    CubinCache& cache = cubin_cache();
    CacheHealth health{.directory = cache.directory().string(), .problem = cache.problem()};
    for (const CacheEntry& entry : cache.list()) {
        ++health.num_entries;
        health.bytes += int64_t(entry.bytes);
        health.num_damaged += !entry.problem.empty();
    }
    return health;
}

std::string indented(std::string_view text) {
    std::string result = "      ";
    for (char c : text) result += c == '\n' ? "\n      " : std::string(1, c);
    return result;
}

std::string library_text(const LibraryHealth& health) {
    std::string text = fmt::format("{:15}", health.name + ":");
    if (health.found) text += fmt::format("{} ({})", health.version.empty() ? "found" : health.version, health.path);
    if (!health.problem.empty()) text += health.found ? "\n" + indented(health.problem) : health.problem;
    text += "\n";
    for (const auto& [rule, tried, outcome] : health.attempts)
        text += fmt::format("      {}: {}: {}\n", rule, tried, outcome);
    return text;
}

std::string verdict(const DoctorReport& report) {
    auto yes_or = [](bool yes, std::string_view no) { return yes ? std::string_view("yes") : no; };
    return fmt::format("compile for a GPU: {}\nrun on a GPU:      {}\nrun emulated:      {}\n",
                       yes_or(report.can_compile(), "no, NVRTC is missing or does not work"),
                       yes_or(report.can_run_cuda(), "no, see the driver, the devices and NVRTC above"),
                       yes_or(report.can_emulate(), "no, a C++ compiler is missing"));
}

nlohmann::json library_json(const LibraryHealth& health) {
    nlohmann::json attempts = nlohmann::json::array();
    for (const auto& [rule, tried, outcome] : health.attempts)
        attempts.push_back({{"rule", rule}, {"tried", tried}, {"outcome", outcome}});
    return {{"name", health.name},       {"found", health.found},     {"path", health.path},
            {"version", health.version}, {"problem", health.problem}, {"attempts", attempts}};
}

}  // namespace

DoctorReport examine() {
    DoctorReport report;
    report.driver = examine_driver(report.devices);
    report.nvrtc = examine_nvrtc();
    report.host_compiler = examine_host_compiler();
    report.cache = examine_cache();
    return report;
}

std::string to_text(const DoctorReport& report) {
    std::string text = library_text(report.driver);
    for (const DeviceHealth& device : report.devices)
        text += fmt::format("  cuda:{} {} ({}), {:.1f} GiB\n", device.ordinal, device.name, device.arch,
                            double(device.memory_bytes) / double(int64_t{1} << 30));
    text += library_text(report.nvrtc);
    const auto& compiler = report.host_compiler;
    text += fmt::format(
        "{:15}{}\n", "host compiler:",
        compiler.problem.empty() ? fmt::format("{} ({})", compiler.version, compiler.command) : compiler.problem);
    const auto& cache = report.cache;
    text += fmt::format("{:15}{}: {}\n", "kernel cache:", cache.directory,
                        cache.problem.empty() ? fmt::format("{} entries, {:.1f} MiB, {} damaged", cache.num_entries,
                                                            double(cache.bytes) / double(1 << 20), cache.num_damaged)
                                              : cache.problem);
    return text + "\n" + verdict(report);
}

std::string to_json(const DoctorReport& report) {
    nlohmann::json devices = nlohmann::json::array();
    for (const DeviceHealth& device : report.devices)
        devices.push_back({{"ordinal", device.ordinal},
                           {"name", device.name},
                           {"arch", device.arch},
                           {"memory_bytes", device.memory_bytes}});
    const auto& compiler = report.host_compiler;
    const auto& cache = report.cache;
    nlohmann::json json = {
        {"driver", library_json(report.driver)},
        {"devices", devices},
        {"nvrtc", library_json(report.nvrtc)},
        {"host_compiler",
         {{"command", compiler.command}, {"version", compiler.version}, {"problem", compiler.problem}}},
        {"cache",
         {{"directory", cache.directory},
          {"problem", cache.problem},
          {"entries", cache.num_entries},
          {"bytes", cache.bytes},
          {"damaged", cache.num_damaged}}},
        {"can_compile", report.can_compile()},
        {"can_run_cuda", report.can_run_cuda()},
        {"can_emulate", report.can_emulate()},
    };
    return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";  // paths are any bytes
}

}  // namespace tw

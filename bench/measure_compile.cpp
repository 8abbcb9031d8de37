#include <chrono>
#include <mutex>

#include "bench/measures.h"
#include "ops/program.h"
#include "runtime/compile/compile.h"

namespace tw::bench {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e3;
}

struct Compiled {
    std::string text;  ///< CUDA of all kernels
    size_t kernels = 0;
    double lower_ms = 0, total_ms = 0;
};

Compiled compile_once(const schedules::CatalogEntry& entry, const std::string& arch, bool use_disk) {
    auto begin = std::chrono::steady_clock::now();
    Program program = build(entry.make(target(arch)));
    Compiled result{.text = program.cuda(), .kernels = program.kernels().size(), .lower_ms = milliseconds_since(begin)};
    std::vector<CompileRequest> requests;
    for (const codegen::KernelText& kernel : program.kernels())
        requests.push_back({.source = kernel.cuda, .name = kernel.name + ".cu", .arch = arch, .use_disk = use_disk});
    for (const CompileOutcome& outcome : compile_all(requests)) outcome.get();
    result.total_ms = milliseconds_since(begin);
    return result;
}

/// The first compilation of a process loads NVRTC, which is nobody's kernel's time.
void load_nvrtc(const std::string& arch) {
    static std::once_flag loaded;
    std::call_once(loaded, [&] {
        compile_kernel(
            {.source = "extern \"C\" __global__ void empty() {}", .name = "empty.cu", .arch = arch, .use_disk = false});
    });
}

}  // namespace

nlohmann::json measure_compile(const schedules::CatalogEntry& entry, const std::string& arch) {
    load_nvrtc(arch);
    clear_compile_memo();
    Compiled cold = compile_once(entry, arch, false);
    clear_compile_memo();
    Compiled stored = compile_once(entry, arch, true);
    clear_compile_memo();
    Compiled disk = compile_once(entry, arch, true);
    Compiled memo = compile_once(entry, arch, true);
    return {{"kernels", cold.kernels},
            {"lower_ms", cold.lower_ms},
            {"cold_ms", cold.total_ms},
            {"disk_ms", disk.total_ms},
            {"memo_ms", memo.total_ms},
            {"disk_read_ms", disk.total_ms - disk.lower_ms},
            {"memo_read_ms", memo.total_ms - memo.lower_ms},
            {"same_text", cold.text == stored.text && stored.text == disk.text && disk.text == memo.text}};
}

}  // namespace tw::bench

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "bench/measures.h"
#include "ops/program.h"
#include "runtime/compile/compile.h"

namespace tw::bench {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Why the kernel cannot be had; empty if it can.
std::string problem_of(const schedules::CatalogEntry& entry, const Target& target, bool compile) try {
    const Program program = build(entry.make(target));
    for (const codegen::KernelText& kernel : program.kernels())
        if (compile) compile_kernel({.source = kernel.cuda, .name = kernel.name + ".cu", .arch = target.arch});
    return "";
} catch (const NvrtcMissing&) {
    throw;
} catch (const std::exception& problem) {
    return first_line(problem.what());
}

}  // namespace

nlohmann::json compile_ahead(const std::vector<const schedules::CatalogEntry*>& entries, const Target& target,
                             bool compile, int threads) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::string> problems(entries.size());
    std::vector<std::exception_ptr> missing(entries.size());
    std::atomic<size_t> next = 0;
    auto take = [&] {
        for (size_t i = next++; i < entries.size(); i = next++) try {
                problems[i] = problem_of(*entries[i], target, compile);
            } catch (...) {
                missing[i] = std::current_exception();
            }
    };
    if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    {
        std::vector<std::jthread> workers;
        for (int i = 0; i < threads; ++i) workers.emplace_back(take);
    }
    for (const std::exception_ptr& problem : missing)
        if (problem) std::rethrow_exception(problem);
    nlohmann::json refused = nlohmann::json::object();
    for (size_t i = 0; i < entries.size(); ++i)
        if (!problems[i].empty()) refused[entries[i]->name] = problems[i];
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return {{"refused", refused}, {"seconds", took.count()}};
}

}  // namespace tw::bench

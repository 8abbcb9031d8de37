#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "bench/measures.h"
#include "ops/program.h"
#include "runtime/compile/compile.h"

namespace tw::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

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

struct Item {
    const schedules::CatalogEntry* entry;
    std::optional<Clock::time_point> begun = {};
    bool done = false, left = false;
    std::string problem = {};
    std::exception_ptr missing = {};
};

/// What the threads share. It outlives the call if one of them is still at a kernel that was left.
struct Work {
    std::vector<Item> items;
    Target target;
    bool compile = true;
    double most_seconds = 0;
    size_t next = 0;
    std::mutex mutex;
    std::condition_variable changed;
};

std::atomic<int> threads_left = 0;

bool takes_too_long(const Item& item, double most_seconds) {
    return most_seconds > 0 && seconds_since(*item.begun) > most_seconds;
}
std::string told_as_too_long(double most_seconds) {
    return fmt::format("took more than {} s to compile", most_seconds);
}

void take_items(const std::shared_ptr<Work>& work) {
    std::unique_lock lock(work->mutex);
    while (work->next < work->items.size()) {
        Item& item = work->items[work->next++];
        item.begun = Clock::now();
        lock.unlock();
        std::string problem;
        std::exception_ptr missing;
        try {
            problem = problem_of(*item.entry, work->target, work->compile);
        } catch (...) {
            missing = std::current_exception();
        }
        lock.lock();
        item.done = true;
        work->changed.notify_all();
        if (item.left) {  // another thread goes on
            --threads_left;
            return;
        }
        item.problem = takes_too_long(item, work->most_seconds) ? told_as_too_long(work->most_seconds) : problem;
        item.missing = missing;
    }
}

void start_thread(const std::shared_ptr<Work>& work) { std::thread(take_items, work).detach(); }

/// Until all are done, or left since they took too long.
void wait_for_all(const std::shared_ptr<Work>& work) {
    std::unique_lock lock(work->mutex);
    auto over = [](const Item& item) { return item.done || item.left; };
    while (!std::ranges::all_of(work->items, over)) {
        work->changed.wait_for(lock, std::chrono::milliseconds(100));
        for (Item& item : work->items) {
            if (over(item) || !item.begun || !takes_too_long(item, work->most_seconds)) continue;
            item.left = true;
            item.problem = told_as_too_long(work->most_seconds);
            ++threads_left;
            start_thread(work);
        }
    }
}

}  // namespace

bool compiles_still() { return threads_left > 0; }

nlohmann::json compile_ahead(const std::vector<const schedules::CatalogEntry*>& entries, const Target& target,
                             const AheadOptions& options) {
    const Clock::time_point begin = Clock::now();
    auto work = std::make_shared<Work>();
    work->target = target;
    work->compile = options.compile;
    work->most_seconds = options.most_seconds;
    for (const auto* entry : entries) work->items.push_back({.entry = entry});
    const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    for (int i = 0; i < (options.threads > 0 ? options.threads : processors); ++i) start_thread(work);
    wait_for_all(work);
    const std::lock_guard lock(work->mutex);
    nlohmann::json refused = nlohmann::json::object();
    for (const Item& item : work->items) {
        if (item.missing) std::rethrow_exception(item.missing);
        if (!item.problem.empty()) refused[item.entry->name] = item.problem;
    }
    return {{"refused", refused}, {"seconds", seconds_since(begin)}};
}

}  // namespace tw::bench

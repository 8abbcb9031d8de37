#include "runtime/compile/compile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include <fmt/ranges.h>

#include "runtime/compile/cubin_cache.h"
#include "runtime/compile/library.h"

namespace tw {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::vector<std::string> all_options(const CompileRequest& request, const Nvrtc& nvrtc) {
    auto options = default_compile_options(request.arch);
    // From 12.9 on, where a driver is, NVRTC has a cache of its own; a hit there brings no ptxas log, hence no
    // resources.
    if (std::pair(nvrtc.major, nvrtc.minor) >= std::pair(12, 9)) options.push_back("--no-cache");
    options.insert(options.end(), request.options.begin(), request.options.end());
    return options;
}

// All that the result depends on, as text. Lengths keep two different lists of parts from reading the same.
std::string cache_key(const CompileRequest& request, const Nvrtc& nvrtc) {
    std::string key = fmt::format("NVRTC {}\narch {}\n", nvrtc.identity, request.arch);
    for (const auto& option : all_options(request, nvrtc)) key += fmt::format("option {} {}\n", option.size(), option);
    return key + fmt::format("ptx {}\nname {} {}\n\n", request.want_ptx, request.name.size(), request.name) +
           request.source;
}

// The payload of a disk entry: seconds, then cubin, ptx and log, each after its size.
std::string pack_payload(const CompiledKernel& kernel) {
    std::string bytes(reinterpret_cast<const char*>(&kernel.nvrtc_seconds), sizeof(double));
    for (const std::string* part : {&kernel.cubin, &kernel.ptx, &kernel.log}) {
        uint64_t size = part->size();
        bytes.append(reinterpret_cast<const char*>(&size), sizeof size).append(*part);
    }
    return bytes;
}

std::shared_ptr<CompiledKernel> unpack_payload(std::string_view bytes) {
    auto kernel = std::make_shared<CompiledKernel>();
    if (bytes.size() < sizeof(double)) return nullptr;
    std::memcpy(&kernel->nvrtc_seconds, bytes.data(), sizeof(double));
    bytes.remove_prefix(sizeof(double));
    for (std::string* part : {&kernel->cubin, &kernel->ptx, &kernel->log}) {
        uint64_t size = 0;
        if (bytes.size() < sizeof size) return nullptr;
        std::memcpy(&size, bytes.data(), sizeof size);
        bytes.remove_prefix(sizeof size);
        if (bytes.size() < size) return nullptr;
        *part = bytes.substr(0, size);
        bytes.remove_prefix(size);
    }
    if (!bytes.empty()) return nullptr;
    kernel->resources = parse_resources(kernel->log);
    kernel->from = CompiledBy::Disk;
    return kernel;
}

// An NVRTC program, destroyed at the end of the scope.
class Program {
public:
    Program(const NvrtcTable& call, const CompileRequest& request) : call_(call) {
        auto result = call.create_program(&program_, request.source.c_str(), request.name.c_str(), 0, nullptr, nullptr);
        if (result != cuda::NvrtcSuccess)
            throw_error(CompileError, "{}: nvrtcCreateProgram: {}", request.name, call.get_error_string(result));
    }
    ~Program() { call_.destroy_program(&program_); }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    cuda::NvrtcResult compile(const std::vector<std::string>& options) {
        std::vector<const char*> texts;
        for (const auto& option : options) texts.push_back(option.c_str());
        return call_.compile_program(program_, int(texts.size()), texts.data());
    }

    // Text ends at the first zero byte; a cubin has as many bytes as it says.
    std::string log() const { return text(get(call_.get_log_size, call_.get_log, "nvrtcGetProgramLog")); }
    std::string ptx() const { return text(get(call_.get_ptx_size, call_.get_ptx, "nvrtcGetPTX")); }
    std::string cubin() const { return get(call_.get_cubin_size, call_.get_cubin, "nvrtcGetCUBIN"); }

private:
    using Size = cuda::NvrtcResult (*)(cuda::NvrtcProgram, size_t*);
    using Get = cuda::NvrtcResult (*)(cuda::NvrtcProgram, char*);

    std::string get(Size size, Get read, const char* what) const {
        size_t bytes = 0;
        auto result = size(program_, &bytes);
        std::string data(bytes, '\0');
        if (result == cuda::NvrtcSuccess) result = read(program_, data.data());
        if (result != cuda::NvrtcSuccess) throw_error(CompileError, "{}: {}", what, call_.get_error_string(result));
        return data;
    }
    static std::string text(const std::string& bytes) { return bytes.c_str(); }

    const NvrtcTable& call_;
    cuda::NvrtcProgram program_ = nullptr;
};

// "k.cu: NVRTC 13.0 (/usr/...) for sm_90a: " so that a wrong library or target is seen at once.
std::string heading(const CompileRequest& request, const Nvrtc& nvrtc) {
    return fmt::format("{}: NVRTC {}.{} ({}) for {}", request.name, nvrtc.major, nvrtc.minor, nvrtc.library.path,
                       request.arch);
}

void refuse_failure(const CompileRequest& request, const Nvrtc& nvrtc, cuda::NvrtcResult result,
                    const std::string& log) {
    if (result == cuda::NvrtcSuccess) return;
    if (result == cuda::NvrtcErrorBuiltinOperation)
        throw_error(CompileError, "{}: {}\n{}NVRTC needs libnvrtc-builtins of the same version beside it.",
                    heading(request, nvrtc), nvrtc.call.get_error_string(result), log);
    std::string context = error_context(request.source, request.name, log);
    if (context.empty())  // no line is at fault, an option may be
        throw_error(CompileError, "{}: {}\n{}{}options: {}", heading(request, nvrtc),
                    nvrtc.call.get_error_string(result), log, register_advice(log),
                    fmt::join(all_options(request, nvrtc), " "));
    throw_error(CompileError, "{}: {}\n{}\n{}", heading(request, nvrtc), nvrtc.call.get_error_string(result), log,
                context);
}

void refuse_fatal_warnings(const CompileRequest& request, const Nvrtc& nvrtc, const std::string& log) {
    auto fatal = fatal_warnings(log);
    if (!fatal.empty())
        throw_error(CompileError, "{}: it would compile to slow code, which counts as an error:\n{}\n{}",
                    heading(request, nvrtc), fmt::join(fatal, "\n"), register_advice(log));
}

std::shared_ptr<CompiledKernel> compile_with_nvrtc(const CompileRequest& request, const Nvrtc& nvrtc) {
    auto begin = Clock::now();
    Program program(nvrtc.call, request);
    auto result = program.compile(all_options(request, nvrtc));
    auto kernel = std::make_shared<CompiledKernel>();
    kernel->log = program.log();
    refuse_failure(request, nvrtc, result, kernel->log);
    refuse_fatal_warnings(request, nvrtc, kernel->log);
    kernel->cubin = program.cubin();
    if (request.want_ptx) kernel->ptx = program.ptx();
    kernel->resources = parse_resources(kernel->log);
    kernel->nvrtc_seconds = seconds_since(begin);
    return kernel;
}

std::shared_ptr<CompiledKernel> compile_or_read(const CompileRequest& request, const Nvrtc& nvrtc,
                                                const std::string& key) {
    if (request.use_disk)
        if (auto payload = cubin_cache().load(key))
            if (auto kernel = unpack_payload(*payload)) return kernel;
    auto kernel = compile_with_nvrtc(request, nvrtc);
    if (request.use_disk) cubin_cache().store(key, pack_payload(*kernel));
    return kernel;
}

// What this process has compiled, by full key. A key that is being compiled has an entry already, for others to wait
// on.
class Memo {
public:
    using Result = std::shared_ptr<const CompiledKernel>;

    // The result and whether this call made it.
    template <class Make>
    std::pair<Result, bool> get(const std::string& key, Make make) {
        std::unique_lock lock(mutex_);
        while (true) {
            auto [entry, is_new] = entries_.try_emplace(key);
            if (is_new) break;
            if (entry->second) return {entry->second, false};
            done_.wait(lock);  // then look again: a failed entry is gone, and the next who waits tries itself
        }
        lock.unlock();
        Result result;
        try {
            result = make();
        } catch (...) {
            lock.lock();
            entries_.erase(key);
            done_.notify_all();
            throw;
        }
        lock.lock();
        entries_[key] = result;
        remember(key, result);
        done_.notify_all();
        return {result, true};
    }

    void clear() {
        std::lock_guard lock(mutex_);
        for (const auto& key : order_) entries_.erase(key);
        order_.clear();
        bytes_ = 0;
    }

private:
    static constexpr size_t LimitBytes = size_t{512} << 20;  // a tuner may compile a hundred thousand kernels

    static size_t bytes_of(const std::string& key, const Result& result) {
        return 2 * key.size() + result->cubin.size() + result->ptx.size() + result->log.size();
    }

    void remember(const std::string& key, const Result& result) {
        order_.push_back(key);
        bytes_ += bytes_of(key, result);
        while (bytes_ > LimitBytes && order_.size() > 1) {
            auto oldest = entries_.find(order_.front());
            bytes_ -= bytes_of(oldest->first, oldest->second);
            entries_.erase(oldest);
            order_.pop_front();
        }
    }

    std::mutex mutex_;
    std::condition_variable done_;
    std::unordered_map<std::string, Result> entries_;  // null while it is being compiled
    std::list<std::string> order_;                     // of the finished ones, oldest first
    size_t bytes_ = 0;
};

Memo& memo() {
    static Memo instance;
    return instance;
}

}  // namespace

std::string_view to_string(CompiledBy from) {
    switch (from) {
        case CompiledBy::Nvrtc: return "nvrtc";
        case CompiledBy::Memo: return "memo";
        case CompiledBy::Disk: return "disk";
    }
    return "?";
}

const Resources& CompiledKernel::of(const std::string& entry) const {
    std::vector<std::string> names;
    for (const Resources& one : resources) {
        if (one.entry == entry) return one;
        names.push_back(one.entry);
    }
    throw_error(CompileError, "there is no entry function '{}', only [{}]; is it extern \"C\" __global__?", entry,
                fmt::join(names, ", "));
}

std::vector<std::string> default_compile_options(const std::string& arch) {
    return {"--gpu-architecture=" + arch, "--fmad=false", "--std=c++17", "--ptxas-options=-v"};
}

CompiledKernel compile_kernel(const CompileRequest& request) { return compile_kernel(request, load_nvrtc()); }

CompiledKernel compile_kernel(const CompileRequest& request, const Nvrtc& nvrtc) {
    auto begin = Clock::now();
    std::string key = cache_key(request, nvrtc);
    auto [found, made_here] = memo().get(key, [&] { return compile_or_read(request, nvrtc, key); });
    CompiledKernel kernel = *found;
    if (!made_here) kernel.from = CompiledBy::Memo;
    kernel.seconds = seconds_since(begin);
    return kernel;
}

const CompiledKernel& CompileOutcome::get() const {
    if (error) std::rethrow_exception(error);
    return kernel;
}

std::vector<CompileOutcome> compile_all(std::span<const CompileRequest> requests, int num_threads) {
    if (num_threads <= 0) num_threads = int(std::max(1u, std::thread::hardware_concurrency()));
    num_threads = int(std::min(size_t(num_threads), requests.size()));

    std::vector<CompileOutcome> outcomes(requests.size());
    std::atomic<size_t> next = 0;
    auto work = [&] {
        for (size_t i = next++; i < requests.size(); i = next++) {
            try {
                outcomes[i].kernel = compile_kernel(requests[i]);
            } catch (...) {
                outcomes[i].error = std::current_exception();
            }
        }
    };
    std::vector<std::jthread> threads;
    for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
    work();
    threads.clear();  // joins
    return outcomes;
}

void clear_compile_memo() { memo().clear(); }

}  // namespace tw

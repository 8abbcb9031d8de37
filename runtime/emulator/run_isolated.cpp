// A launch in a process of its own. The report and the contents of writable regions come back through shared pages.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/emulator/machine.h"
#include "support/die_with_parent.h"

namespace tw::emulator {
namespace {

/// Plain values and strings, one after another.
class Packer {
public:
    template <class T>
    requires std::is_trivially_copyable_v<T>
    void put(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
    void put(const std::string& text) {
        put(text.size());
        bytes_ += text;
    }
    const std::string& bytes() const { return bytes_; }

private:
    std::string bytes_;
};

class Unpacker {
public:
    explicit Unpacker(const std::string& bytes) : bytes_(bytes) {}
    template <class T>
    requires std::is_trivially_copyable_v<T>
    void get(T& value) { std::memcpy(&value, take(sizeof value), sizeof value); }
    void get(std::string& text) {
        size_t size = 0;
        get(size);
        text.assign(take(size), size);
    }

private:
    const char* take(size_t count) {
        internal_check(at_ + count <= bytes_.size(), "a report of {} bytes is cut short", bytes_.size());
        return bytes_.data() + std::exchange(at_, at_ + count);
    }
    const std::string& bytes_;
    size_t at_ = 0;
};

// One function for both directions, so that they agree: `move` packs or unpacks a value.
template <class Move, class List, class Each>
void move_list(Move move, List& list, Each each) {
    size_t size = list.size();
    move(size);
    list.resize(size);
    for (auto& item : list) each(item);
}

template <class Move>
void move_report(Move move, Report& report) {
    move_list(move, report.findings, [&](Finding& f) { move(f.kind), move(f.message), move(f.source), move(f.line); });
    move(report.seconds), move(report.accesses);
    Statistics& s = report.statistics;
    for (uint64_t* count :
         {&s.shared_reads, &s.shared_writes, &s.shared_bytes, &s.global_reads, &s.global_writes, &s.global_bytes,
          &s.atomics, &s.shared_requests, &s.shared_wavefronts, &s.shared_bank_conflicts, &s.global_requests,
          &s.global_sectors, &s.box_bytes, &s.barriers, &s.warp_operations})
        move(*count);
    move_list(move, s.sites, [&](Statistics::Site& site) {
        move(site.source), move(site.line), move(site.memory), move(site.shared), move(site.writes), move(site.bytes);
        move(site.accesses), move(site.requests), move(site.wavefronts), move(site.conflicts), move(site.sectors);
    });
}

/// Pages that parent and child both see, for the contents of the writable regions.
class SharedContents {
public:
    explicit SharedContents(const std::vector<Region>& regions) : regions_(regions) {
        for (const Region& region : regions) bytes_ += region.writable ? region.bytes : 0;
        if (bytes_ == 0) return;
        void* pages = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        internal_check(pages != MAP_FAILED, "no {} bytes of shared pages", bytes_);
        pages_ = static_cast<char*>(pages);
    }
    ~SharedContents() {
        if (pages_) munmap(pages_, bytes_);
    }
    SharedContents(const SharedContents&) = delete;

    void save() {
        for_each([](char* page, void* region, size_t bytes) { std::memcpy(page, region, bytes); });
    }
    void restore() {
        for_each([](char* page, void* region, size_t bytes) { std::memcpy(region, page, bytes); });
    }

private:
    template <class Copy>
    void for_each(Copy copy) {
        char* page = pages_;
        for (const Region& region : regions_) {
            if (!region.writable) continue;
            copy(page, region.base, region.bytes);
            page += region.bytes;
        }
    }
    const std::vector<Region>& regions_;
    size_t bytes_ = 0;
    char* pages_ = nullptr;
};

[[noreturn]] void run_as_child(int to, const Module& module, const Launch& launch, const Options& options,
                               SharedContents& contents) {
    Packer packer;
    try {
        Report report = run_alone(module, launch, options);
        move_report([&](auto& value) { packer.put(value); }, report);
        contents.save();
    } catch (const std::exception&) {
        _exit(1);  // the parent has seen the same launch pass its checks
    }
    const std::string& bytes = packer.bytes();
    for (size_t at = 0; at < bytes.size();) {
        ssize_t written = write(to, bytes.data() + at, bytes.size() - at);
        if (written <= 0) _exit(1);
        at += size_t(written);
    }
    _exit(0);
}

/// What the child writes until it closes its end; false if it takes longer.
bool read_all(int from, double seconds, std::string& bytes) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double deadline = double(now.tv_sec) + 1e-9 * double(now.tv_nsec) + seconds;
    for (char part[4096];;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        double left = deadline - double(now.tv_sec) - 1e-9 * double(now.tv_nsec);
        if (left <= 0) return false;
        pollfd ready{from, POLLIN, 0};
        if (poll(&ready, 1, int(std::min(left * 1e3 + 1, 1e9))) <= 0) continue;
        ssize_t got = read(from, part, sizeof part);
        if (got == 0) return true;
        if (got > 0) bytes.append(part, size_t(got));
    }
}

Report failure(Finding::Kind kind, const std::string& kernel, const std::string& what) {
    Report report;
    Finding& finding = report.findings.emplace_back();
    finding.kind = kind;
    finding.message = fmt::format("{}: {} {}", to_string(kind), kernel, what);
    return report;
}

}  // namespace

Report run_isolated(const Module& module, const Launch& launch, const Options& options) {
    constexpr double Grace = 5;  // the child looks at its limit itself, and then has a report to write
    check_launch(module, launch);
    SharedContents contents(launch.regions);
    int ends[2];
    internal_check(pipe(ends) == 0, "no pipe");
    const pid_t parent = getpid();
    pid_t child = 0;
    {
        std::lock_guard lock(launch_mutex());  // else the child could inherit a launch of another thread, half done
        child = fork();
        internal_check(child >= 0, "no process");
        if (child == 0) {
            die_with_parent(parent);
            close(ends[0]);
            run_as_child(ends[1], module, launch, options, contents);
        }
    }
    close(ends[1]);
    std::string bytes;
    const bool in_time = read_all(ends[0], options.seconds_limit + Grace, bytes);
    close(ends[0]);
    if (!in_time) kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (!in_time)
        return failure(Finding::Kind::StepLimit, launch.kernel,
                       fmt::format("did not end within {} seconds", options.seconds_limit));
    if (WIFSIGNALED(status))
        return failure(Finding::Kind::Crash, launch.kernel,
                       fmt::format("ended its process: {}", strsignal(WTERMSIG(status))));
    if (WEXITSTATUS(status) != 0) return failure(Finding::Kind::Crash, launch.kernel, "ended its process");

    Report report;
    Unpacker unpacker(bytes);
    move_report([&](auto& value) { unpacker.get(value); }, report);
    contents.restore();
    return report;
}

}  // namespace tw::emulator

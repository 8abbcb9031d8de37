#include "runtime/compile/cubin_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>
#include <tuple>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/core.h>

#include "runtime/compile/cubin_format.h"
#include "runtime/compile/replace_file.h"

namespace tw {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t MaxEntryBytes = uint64_t{256} << 20;  // a larger file is not ours
constexpr int StoresBetweenEvictions = 64;               // a scan of the folder costs about a microsecond a file
constexpr int64_t ClocksDifferBySeconds = 3600;          // of machines that share the folder, at most

bool read_all(int file, std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
        ssize_t got = ::read(file, bytes.data() + done, bytes.size() - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += size_t(got);
    }
    return true;
}

bool is_entry(std::string_view name) { return name.ends_with(".twc"); }

// mkdir -p; only the folder itself is ours, the ones above get the usual mode.
void create_folder(const fs::path& folder) {
    std::error_code ignored;
    if (folder.has_parent_path()) fs::create_directories(folder.parent_path(), ignored);
    ::mkdir(folder.c_str(), 0700);
}

// Nothing can be made in a folder that was removed while it was open.
bool is_removed(int folder) {
    struct stat status {};
    return fstat(folder, &status) == 0 && status.st_nlink == 0;
}

struct Warnings {
    std::mutex mutex;
    WarningSink sink = [](const std::string& text) { fmt::print(stderr, "tilewright: {}\n", text); };
    std::set<std::string> given;
};

Warnings& warnings() {
    static auto* all = new Warnings;  // outlives the statics that may warn when they go
    return *all;
}

}  // namespace

WarningSink set_warning_sink(WarningSink sink) {
    std::lock_guard lock(warnings().mutex);
    warnings().given.clear();
    return std::exchange(warnings().sink, std::move(sink));
}

void warn_once(const std::string& text) {
    std::lock_guard lock(warnings().mutex);
    if (warnings().given.insert(text).second && warnings().sink) warnings().sink(text);
}

fs::path default_cache_directory() {
    auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return fs::path(value ? value : "");
    };
    if (auto own = variable("TW_CACHE_DIR"); !own.empty()) return own;
    if (auto caches = variable("XDG_CACHE_HOME"); caches.is_absolute()) return caches / "tilewright";
    if (auto home = variable("HOME"); home.is_absolute()) return home / ".cache/tilewright";
    return {};
}

CubinCache::CubinCache(fs::path directory, uint64_t limit_bytes)
    : directory_(std::move(directory)), limit_bytes_(limit_bytes) {}

CubinCache::~CubinCache() {
    if (directory_fd_ >= 0) ::close(directory_fd_);
}

// The open folder, or -1 with problem_ set. What was found unusable stays so; one that was removed is made again.
int CubinCache::open_directory() {
    std::lock_guard lock(mutex_);
    if (!problem_.empty()) return -1;
    if (directory_fd_ >= 0 && !is_removed(directory_fd_)) return directory_fd_;
    auto refuse = [&](const std::string& why) {
        problem_ = fmt::format("the kernel cache is off: {}: {}", directory_.string(), why);
        warn_once(problem_);
        return -1;
    };
    if (directory_.empty()) return refuse("none of TW_CACHE_DIR, XDG_CACHE_HOME and HOME is set");

    create_folder(directory_);
    int descriptor = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) return refuse(system_text("cannot open it as a folder (a link is not followed)"));
    File folder(descriptor);
    struct stat status {};
    if (fstat(*folder, &status) != 0) return refuse(system_text("fstat"));
    if (status.st_uid != geteuid())
        return refuse(fmt::format("it belongs to user {}, not to {}", status.st_uid, geteuid()));
    if (status.st_mode & (S_IWGRP | S_IWOTH))
        return refuse(fmt::format("others may write to it (mode {:o}); chmod 700 it", status.st_mode & 07777));
    if (directory_fd_ < 0) return directory_fd_ = folder.release();
    bool replaced = dup3(*folder, directory_fd_, O_CLOEXEC) >= 0;  // the number stays: other threads are using it
    return replaced ? directory_fd_ : refuse(system_text("dup3"));
}

std::string CubinCache::problem() {
    open_directory();
    return problem_;
}

// The entry's bytes; a problem that is not empty means that the file is of no use. One that cannot be opened now (too
// many open files) may be good.
std::optional<std::string> CubinCache::read_entry(const std::string& file_name, std::string& problem) {
    File file(openat(directory_fd_, file_name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!file) {
        bool is_no_file = errno == ELOOP || errno == ENXIO;  // a link, a socket
        if (is_no_file) problem = system_text("cannot open it");
        if (!is_no_file && errno != ENOENT)
            warn_once(fmt::format("cannot read the kernel cache: {}", system_text((directory_ / file_name).c_str())));
        return std::nullopt;
    }
    struct stat status {};
    if (fstat(*file, &status) != 0 || !S_ISREG(status.st_mode))
        problem = "not a plain file";
    else if (status.st_uid != geteuid())
        problem = fmt::format("it belongs to user {}", status.st_uid);
    else if (uint64_t(status.st_size) > MaxEntryBytes)
        problem = fmt::format("{} bytes are too many", status.st_size);
    if (!problem.empty()) return std::nullopt;

    std::string bytes(size_t(status.st_size), '\0');
    if (!read_all(*file, bytes)) {
        problem = "it could not be read to its end";
        return std::nullopt;
    }
    return bytes;
}

// Also one that another process removes, and a directory in its place with all that is in it: the folder is ours.
bool CubinCache::remove_entry(const std::string& file_name) {
    if (unlinkat(directory_fd_, file_name.c_str(), 0) == 0 || errno == ENOENT) return true;
    if (errno != EISDIR && errno != EPERM) return false;
    std::error_code problem;
    fs::remove_all(fs::path(fmt::format("/proc/self/fd/{}", directory_fd_)) / file_name, problem);
    return !problem;
}

std::optional<std::string> CubinCache::load(std::string_view key) {
    if (open_directory() < 0) return std::nullopt;
    std::string file_name = entry_file_name(key), problem;
    auto bytes = read_entry(file_name, problem);
    if (bytes) {
        UnpackedEntry entry = unpack_entry(*bytes);
        if (entry.problem.empty() && entry.key == key) {
            utimensat(directory_fd_, file_name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);  // used now: eviction goes by it
            return std::string(entry.payload);
        }
        // Another key under the same 128-bit hash is a good entry that is not ours: it stays until the next store.
        if (entry.problem.empty()) return std::nullopt;
        problem = entry.problem;
    }
    if (problem.empty()) return std::nullopt;
    const bool is_gone = remove_entry(file_name);
    warn_once(
        fmt::format("{} a damaged entry of the kernel cache: {}: {}; what it held has to be compiled, or tuned, again",
                    is_gone ? "removed" : "cannot remove", (directory_ / file_name).string(), problem));
    return std::nullopt;
}

bool CubinCache::store(std::string_view key, std::string_view payload) {
    if (open_directory() < 0) return false;
    std::string bytes = pack_entry(key, payload);
    bool evict_now = false;
    {
        std::lock_guard lock(mutex_);
        if ((evict_now = stores_until_eviction_-- <= 0)) stores_until_eviction_ = StoresBetweenEvictions;
    }
    if (evict_now) make_room(bytes.size());  // first: what is to go may be what fills the disk
    std::string problem = replace_file(directory_fd_, entry_file_name(key), bytes);
    if (!problem.empty())
        warn_once(fmt::format("cannot write to the kernel cache: {}: {}", directory_.string(), problem));
    return problem.empty();
}

std::vector<CacheEntry> CubinCache::list() {
    std::vector<CacheEntry> entries;
    if (open_directory() < 0) return entries;
    for (const std::string& name : names_in(directory_fd_)) {
        if (!is_entry(name)) continue;
        CacheEntry& entry = entries.emplace_back();
        entry.file_name = name;
        struct stat status {};
        if (fstatat(directory_fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
            entry.bytes = uint64_t(status.st_size);
            entry.used_at = status.st_mtime;
        }
        auto bytes = read_entry(name, entry.problem);
        if (!bytes) {
            if (entry.problem.empty()) entries.pop_back();  // another process has just removed it
            continue;
        }
        UnpackedEntry unpacked = unpack_entry(*bytes);
        entry.problem = unpacked.problem;
        entry.key = unpacked.key;
        if (entry.problem.empty() && entry_file_name(entry.key) != name)
            entry.problem = "its name is not its key's hash";
    }
    return entries;
}

std::vector<CacheEntry> CubinCache::verify() {
    std::vector<CacheEntry> damaged;
    for (CacheEntry& entry : list()) {
        if (entry.problem.empty()) continue;
        if (!remove_entry(entry.file_name)) entry.problem += ", and it cannot be removed";
        damaged.push_back(std::move(entry));
    }
    return damaged;
}

void CubinCache::evict() {
    if (open_directory() >= 0) make_room(0);
}

void CubinCache::make_room(uint64_t incoming_bytes) {
    remove_abandoned_files(directory_fd_);
    struct Candidate {
        timespec used;
        uint64_t bytes;
        std::string name;
    };
    std::vector<Candidate> candidates;
    uint64_t total = incoming_bytes;
    for (const std::string& name : names_in(directory_fd_)) {
        struct stat status {};
        if (!is_entry(name) || fstatat(directory_fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
        // A time to come is of a clock that was wrong: it would stay the latest for as long as that.
        bool is_to_come = status.st_mtime > std::time(nullptr) + ClocksDifferBySeconds;
        candidates.push_back({is_to_come ? timespec{} : status.st_mtim, uint64_t(status.st_size), name});
        total += uint64_t(status.st_size);
    }
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        return std::tie(a.used.tv_sec, a.used.tv_nsec, a.name) < std::tie(b.used.tv_sec, b.used.tv_nsec, b.name);
    });
    for (const Candidate& candidate : candidates) {
        if (total <= limit_bytes_) return;
        if (remove_entry(candidate.name)) total -= candidate.bytes;
    }
}

CubinCache& cubin_cache() {
    static CubinCache cache(default_cache_directory());
    return cache;
}

}  // namespace tw

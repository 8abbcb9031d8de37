#include "runtime/compile/replace_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <fmt/core.h>

namespace tw {
namespace {

constexpr int64_t AbandonedAfterSeconds = 3600;  // where files cannot be locked; a writer takes milliseconds

// As temporary_name() makes them: in a folder of a user's, other names that begin so are the user's.
bool is_temporary(std::string_view name) {
    constexpr std::string_view prefix = "tmp-", digits = "0123456789abcdef";
    return name.starts_with(prefix) && name.size() == prefix.size() + 16 &&
           name.find_first_not_of(digits, prefix.size()) == std::string_view::npos;
}

// Random, not the process' number: two containers that share the folder may both be process 1.
std::string temporary_name() {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number) number = uint64_t(getpid());
    return fmt::format("tmp-{:016x}", number);
}

// A new file whose lock is ours. Between its creation and the lock, another process may take it for abandoned.
File create_temporary(int folder, std::string& name) {
    for (int attempt = 0; attempt < 8; ++attempt) {
        name = temporary_name();
        File file(openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!file) {
            if (errno == EEXIST) continue;
            return file;
        }
        if (flock(*file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
        struct stat status {};
        if (fstat(*file, &status) == 0 && status.st_nlink > 0) return file;
    }
    errno = EEXIST;
    return File(-1);
}

bool write_all(int file, std::string_view bytes) {
    while (!bytes.empty()) {
        ssize_t written = ::write(file, bytes.data(), bytes.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        bytes.remove_prefix(size_t(written));
    }
    return true;
}

bool is_abandoned(int file) {
    if (flock(file, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno == EWOULDBLOCK) return false;
    struct stat status {};
    return fstat(file, &status) == 0 && std::abs(std::time(nullptr) - status.st_mtime) > AbandonedAfterSeconds;
}

}  // namespace

std::string system_text(const char* what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

std::vector<std::string> names_in(int folder) {
    std::vector<std::string> names;
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // of its own position
    DIR* listing = copy < 0 ? nullptr : fdopendir(copy);
    if (!listing) {
        if (copy >= 0) ::close(copy);
        return names;
    }
    while (dirent* entry = readdir(listing)) names.push_back(entry->d_name);
    closedir(listing);
    std::sort(names.begin(), names.end());
    return names;
}

std::string replace_file(int folder, const std::string& name, std::string_view bytes) {
    std::string temporary;
    File file = create_temporary(folder, temporary);
    if (!file) return system_text("cannot create a file");
    auto fail = [&](const char* what) {
        std::string problem = system_text(what);
        unlinkat(folder, temporary.c_str(), 0);
        return problem;
    };
    if (!write_all(*file, bytes)) return fail("write");
    if (fsync(*file) != 0) return fail("fsync");
    if (renameat(folder, temporary.c_str(), folder, name.c_str()) != 0) return fail("rename");
    fsync(folder);  // without it a power cut may lose the file, never damage it
    return "";
}

void remove_abandoned_files(int folder) {
    for (const std::string& name : names_in(folder)) {
        if (!is_temporary(name)) continue;
        File file(openat(folder, name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
        if (file && is_abandoned(*file)) unlinkat(folder, name.c_str(), 0);
    }
}

}  // namespace tw

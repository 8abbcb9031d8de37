#include "runtime/emulator/host/scratch_directory.h"

#include <cerrno>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/emulator/host/source.h"

namespace tw::emulator {
namespace {

namespace fs = std::filesystem;

constexpr const char* Prefix = "tilewright-kernels-";

/// The open directory, or -1; a link is not followed.
int open_directory(const fs::path& path) { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }

struct stat status_of(int directory) {
    struct stat status {};
    fstat(directory, &status);
    return status;
}

/// Its owner is gone, or has not locked it yet and will make another. False where there are no locks.
bool is_abandoned(int directory) {
    return status_of(directory).st_uid == geteuid() && flock(directory, LOCK_EX | LOCK_NB) == 0;
}

/// False if another process takes it for abandoned.
bool keep(int directory) {
    bool is_locked_by_another = flock(directory, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    return !is_locked_by_another && status_of(directory).st_nlink > 0;
}

void remove_abandoned(const fs::path& parent) {
    std::error_code ignored;
    for (fs::directory_iterator at(parent, ignored), end; at != end; at.increment(ignored)) {
        if (!at->path().filename().string().starts_with(Prefix)) continue;
        int directory = open_directory(at->path());
        if (directory < 0) continue;
        if (is_abandoned(directory)) fs::remove_all(at->path(), ignored);
        close(directory);
    }
}

}  // namespace

ScratchDirectory::ScratchDirectory() {
    std::error_code error;
    const fs::path parent = fs::temp_directory_path(error);
    if (!error) remove_abandoned(parent);
    const std::string pattern = (parent / Prefix).string() + "XXXXXX";
    for (int attempt = 0; !error && attempt < 8; ++attempt) {
        std::string made = pattern;
        if (!mkdtemp(made.data())) break;
        path_ = made;
        lock_ = open_directory(path_);
        if (keep(lock_)) return;
        close(lock_);
    }
    throw_error(CompileFailed,
                "cannot make a directory '{}' for compiled kernels; set TMPDIR to one that can be "
                "written",
                pattern);
}

ScratchDirectory::~ScratchDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    close(lock_);
}

}  // namespace tw::emulator

#include "ops/persistence/write_aside.h"

#include <cerrno>
#include <cstdint>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/compile/replace_file.h"
#include "support/error.h"

namespace tw {
namespace {

/// Throws what errno says of the call.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, const char* call) {
    throw_error(Error, "{}: cannot be written ({}); check the folder, its permissions and the space that is left",
                path.string(), system_text(call));
}

/// A new file in the folder, locked, which is removed at the end of the scope unless it has got another name. Its name
/// and its lock are those that remove_abandoned_files() looks for.
class AsideTemporary {
public:
    AsideTemporary(int folder, const std::filesystem::path& path) : folder_(folder), file_(create()) {
        if (!file_) fail_to_write(path, "create a file beside it");
    }
    ~AsideTemporary() {
        if (file_ && !is_renamed_) unlinkat(folder_, name_.c_str(), 0);
    }
    AsideTemporary(const AsideTemporary&) = delete;
    AsideTemporary& operator=(const AsideTemporary&) = delete;

    int descriptor() const { return *file_; }
    bool rename_to(const std::string& name) {
        is_renamed_ = renameat(folder_, name_.c_str(), folder_, name.c_str()) == 0;
        return is_renamed_;
    }

private:
    File create() {
        constexpr int Attempts = 8;
        for (int attempt = 0; attempt < Attempts; ++attempt) {
            uint64_t number = 0;
            if (getrandom(&number, sizeof number, 0) != sizeof number) continue;
            name_ = fmt::format("tmp-{:016x}", number);
            File file(openat(folder_, name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
            if (!file && errno == EEXIST) continue;
            if (!file) return file;
            // Another process may have taken it for abandoned before it was locked: then it has, or had, the lock.
            if (flock(*file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
            struct stat status {};
            if (fstat(*file, &status) == 0 && status.st_nlink > 0) return file;
        }
        errno = EEXIST;
        return File(-1);
    }

    int folder_;
    std::string name_;
    bool is_renamed_ = false;
    File file_;  // made last: create() sets the name
};

}  // namespace

void AsideFile::write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
        const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) fail_to_write(path_, "write");
        bytes = bytes.subspan(static_cast<size_t>(written));
    }
}

void write_aside(const std::filesystem::path& path, const std::function<void(const AsideFile&)>& write) {
    const std::string name = path.filename().string();
    if (name.empty() || name == "." || name == "..")
        throw_error(Error, "'{}' names no file; give a name in the folder", path.string());
    const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
    const File folder(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) fail_to_write(path, "open its folder");
    remove_abandoned_files(*folder);

    AsideTemporary temporary(*folder, path);
    write(AsideFile(temporary.descriptor(), path));
    if (fsync(temporary.descriptor()) != 0) fail_to_write(path, "fsync");
    if (!temporary.rename_to(name)) fail_to_write(path, "rename");
    if (fsync(*folder) != 0 && errno != EINVAL) fail_to_write(path, "fsync of its folder");  // EINVAL: has no such call
}

}  // namespace tw

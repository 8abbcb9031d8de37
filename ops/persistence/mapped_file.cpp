#include "ops/persistence/mapped_file.h"

#include <cerrno>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "runtime/compile/replace_file.h"
#include "support/error.h"

namespace tw {
namespace {

/// Throws what errno says of the call.
[[noreturn]] void fail_to_read(const std::filesystem::path& path, const char* call) {
    throw_error(Error, "{}: cannot be read ({}); check the name and the permissions", path.string(), system_text(call));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
    const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe's other end may be nobody's
    if (!file) fail_to_read(path, "open");
    struct stat status {};
    if (fstat(*file, &status) != 0) fail_to_read(path, "fstat");
    if (!S_ISREG(status.st_mode))
        throw_error(Error, "{}: is no plain file, but a folder, a pipe or a device; give a file's name", path.string());
    const auto size = static_cast<size_t>(status.st_size);
    if (size == 0) return;  // what mmap refuses
    const void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, *file, 0);
    if (memory == MAP_FAILED) fail_to_read(path, "mmap");
    bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace tw

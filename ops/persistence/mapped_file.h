// A file as memory that is read.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace tw {

/// The bytes of a file, mapped: pages are read when they are looked at. They stay what they are when another file takes
/// the name, as write_aside() has it. Who writes into the file itself changes them under the reader, and an access
/// behind the end of a file that was made shorter ends the process (SIGBUS).
class MappedFile {
public:
    /// Throws Error, which tells the system's reason, if the file cannot be opened, or is no plain file.
    explicit MappedFile(const std::filesystem::path& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return bytes_; }

private:
    std::span<const std::byte> bytes_;
};

}  // namespace tw

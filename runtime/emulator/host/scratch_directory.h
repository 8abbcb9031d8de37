// Where the host compiler and the disassembler read and write.
#pragma once
#include <filesystem>

namespace tw::emulator {

/// A private directory in the system's temporary one ($TMPDIR), gone with this object. Removes those of processes that
/// were killed: a living owner holds a lock on its directory (flock). Throws CompileFailed where none can be made.
class ScratchDirectory {
public:
    ScratchDirectory();
    ~ScratchDirectory();
    ScratchDirectory(const ScratchDirectory&) = delete;
    ScratchDirectory& operator=(const ScratchDirectory&) = delete;
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
    int lock_ = -1;
};

}  // namespace tw::emulator

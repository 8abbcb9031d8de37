// Files that are there whole, or as they were before: written aside, synced, renamed.
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

namespace tw {

/// What takes a new file's bytes, in order.
class AsideFile {
public:
    AsideFile(int descriptor, const std::filesystem::path& path) : descriptor_(descriptor), path_(path) {}
    /// Throws Error, which tells the system's reason, if they cannot be written.
    void write(std::span<const std::byte> bytes) const;

private:
    int descriptor_;
    const std::filesystem::path& path_;  ///< the file that this one is to replace, for messages
};

/// Replaces the file by what `write` puts into a new one in the same folder, which is synced to the disk before it
/// takes the name; then the folder is. Whenever the process is killed, or the machine loses its power, the file is the
/// old one or the new one. A symbolic link of that name is replaced, not followed.
///
/// The new file is called tmp-<16 hexadecimal digits> until then, and locked while its writer lives: what killed
/// writers left is removed first (remove_abandoned_files() of runtime/compile/replace_file.h). Several may write the
/// same file at once, and the last one wins.
///
/// Throws Error if the path names no file or the system refuses, and what `write` throws; then nothing is left aside,
/// and the file is the old one, unless it was the sync of the folder, the last thing done, that failed.
void write_aside(const std::filesystem::path& path, const std::function<void(const AsideFile&)>& write);

}  // namespace tw

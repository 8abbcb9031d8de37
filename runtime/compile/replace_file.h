// Files of a folder that many processes share: written whole or not at all.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

namespace tw {

/// A descriptor, closed at the end of the scope; -1 for none.
class File {
public:
    explicit File(int descriptor) : descriptor_(descriptor) {}
    File(File&& other) noexcept : descriptor_(other.release()) {}
    ~File() { close(); }
    File& operator=(const File&) = delete;
    explicit operator bool() const { return descriptor_ >= 0; }
    int operator*() const { return descriptor_; }
    int release() { return std::exchange(descriptor_, -1); }
    void close() {
        if (descriptor_ >= 0) ::close(release());
    }

private:
    int descriptor_;
};

/// "write: No space left on device", by errno.
std::string system_text(const char* what);

/// The names in the open folder, sorted.
std::vector<std::string> names_in(int folder);

/// Writes a new file beside it (0600) and renames it: a reader sees the old bytes or the new ones, and the last of
/// several writers wins. Empty, or why it failed; then the file is as it was.
std::string replace_file(int folder, const std::string& name, std::string_view bytes);

/// Removes the new files that killed writers left beside theirs. A writer holds a lock on its new file (flock), which
/// goes with its process: on any machine, and whatever the clocks say.
void remove_abandoned_files(int folder);

}  // namespace tw

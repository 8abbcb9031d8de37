// The disk cache of compiled kernels: a folder of files, one an entry, that many processes may share.
//
//   folder   $TW_CACHE_DIR, else $XDG_CACHE_HOME/tilewright, else ~/.cache/tilewright; mode 0700. A folder of another
//            owner, one that others may write to, or a link is not used.
//   entry    cubin_format.h; it holds the full key, which is compared on a hit.
//   writing  replace_file.h: no reader sees half an entry, and the last of several writers wins. The entries need no
//            lock, since equal keys have equal payloads.
//   trouble  no failure here is an error: it is a miss and one warning. A damaged entry is removed.
//   size     above the limit, the entries that were used least recently are removed, with what killed writers left. A
//            process looks at its first store and at every 64th.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tw {

/// Where the cache's warnings go; stderr until set. Returns the sink before. Each text is given once per process.
using WarningSink = std::function<void(const std::string&)>;
WarningSink set_warning_sink(WarningSink sink);
void warn_once(const std::string& text);

/// The folder by the variables above; empty where there is neither of them nor $HOME.
std::filesystem::path default_cache_directory();

struct CacheEntry {
    std::string file_name;
    std::string key;      // empty when damaged
    uint64_t bytes = 0;   // of the file
    int64_t used_at = 0;  // seconds since 1970
    std::string problem;  // empty when it is good
};

class CubinCache {
public:
    explicit CubinCache(std::filesystem::path directory, uint64_t limit_bytes = uint64_t{1} << 30);
    ~CubinCache();
    CubinCache(const CubinCache&) = delete;
    CubinCache& operator=(const CubinCache&) = delete;

    /// The payload stored under this key, or nothing.
    std::optional<std::string> load(std::string_view key);

    /// Stores it, or warns. True when it is on disk.
    bool store(std::string_view key, std::string_view payload);

    /// Reads every entry and checks it; removes nothing. For `tw cache ls` and `tw cache verify`.
    std::vector<CacheEntry> list();

    /// list(), and removes the damaged entries; returns these.
    std::vector<CacheEntry> verify();

    /// Removes the least recently used entries until at most limit_bytes are left, and what crashed writers left.
    void evict();

    const std::filesystem::path& directory() const { return directory_; }

    /// Why the folder cannot be used; empty when it can. Creates it where there is none.
    std::string problem();

private:
    int open_directory();
    std::optional<std::string> read_entry(const std::string& file_name, std::string& problem);
    bool remove_entry(const std::string& file_name);
    void make_room(uint64_t incoming_bytes);

    std::filesystem::path directory_;
    uint64_t limit_bytes_;
    std::mutex mutex_;
    int directory_fd_ = -1;
    std::string problem_;
    int stores_until_eviction_ = 0;
};

/// The process' own, in the default folder.
CubinCache& cubin_cache();

}  // namespace tw

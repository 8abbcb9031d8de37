// A cache of compiled kernels and records that no other test has.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace tw {

/// TW_CACHE_DIR is a new folder, which is removed, and what it was before again, at the end of the scope.
class CacheFolder {
public:
    CacheFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "tw_test_cache_XXXXXX").string();
        if (mkdtemp(name.data())) path_ = name;
        EXPECT_FALSE(path_.empty()) << name;
        if (const char* before = std::getenv("TW_CACHE_DIR")) before_ = before;
        setenv("TW_CACHE_DIR", path_.c_str(), 1);
    }
    ~CacheFolder() {
        before_ ? setenv("TW_CACHE_DIR", before_->c_str(), 1) : unsetenv("TW_CACHE_DIR");
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    CacheFolder(const CacheFolder&) = delete;
    CacheFolder& operator=(const CacheFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
    std::optional<std::string> before_;
};

}  // namespace tw

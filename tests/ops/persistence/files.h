// What tests of files share: a folder of their own, and files as bytes.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "dsl/host_array.h"

namespace tw {

/// A new folder, which is removed with all in it at the end of the scope.
class FileFolder {
public:
    FileFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "tw_test_files_XXXXXX").string();
        if (mkdtemp(name.data())) path_ = name;
        EXPECT_FALSE(path_.empty()) << name;
    }
    ~FileFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    FileFolder(const FileFolder&) = delete;
    FileFolder& operator=(const FileFolder&) = delete;

    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
    const std::filesystem::path& path() const { return path_; }
    /// How many names begin so.
    size_t count(const std::string& prefix) const {
        size_t found = 0;
        for (const auto& entry : std::filesystem::directory_iterator(path_))
            found += entry.path().filename().string().starts_with(prefix) ? 1 : 0;
        return found;
    }

private:
    std::filesystem::path path_;
};

inline std::string file_text(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void put_text(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

inline std::span<const std::byte> text_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

/// The bytes of a safetensors file with this header.
inline std::string safetensors_text(const std::string& header, const std::string& data = "") {
    const uint64_t length = header.size();
    std::string text(sizeof length, '\0');
    std::memcpy(text.data(), &length, sizeof length);
    return text + header + data;
}

/// Any bits, of bools 0 or 1.
inline HostArray random_bits(Type type, const std::vector<int64_t>& shape, std::mt19937_64& random) {
    HostArray array = host_array(type, shape);
    for (std::byte& byte : array.bytes) byte = std::byte(type == Type::Bool ? random() % 2 : random() % 256);
    return array;
}

inline bool same_array(const HostArray& a, const HostArray& b) {
    return a.type == b.type && a.shape == b.shape && a.strides == b.strides && a.bytes == b.bytes;
}

}  // namespace tw

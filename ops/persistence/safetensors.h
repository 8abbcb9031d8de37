// Files of named arrays, as safetensors has them (Hugging Face, github.com/huggingface/safetensors, README, "Format"):
//
//   8 bytes   N, the length of the header, little-endian; at most 100,000,000
//   N bytes   a JSON object in UTF-8, which begins with '{' and may end with spaces:
//             {"__metadata__": {"text": "text", ...},
//              "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//   the rest  the arrays' bytes, dense rows, little-endian, where data_offsets count from the first of these bytes on
//
//   write_safetensors("model.safetensors", {{"weight", weight}, {"bias", bias}}, {{"epoch", "3"}});
//   Safetensors file("model.safetensors");
//   HostArray weight = file.array("weight");
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsl/host_array.h"
#include "ops/persistence/mapped_file.h"
#include "ops/persistence/safetensors_header.h"

namespace tw {

/// A file that has been checked and is mapped. What the format forbids is refused, and what it leaves open: keys that
/// stand twice, or are others than those above; numbers that are no integers from 0 to 2^63 - 1; shapes whose bytes
/// exceed that, or are not those of data_offsets; data with holes, overlaps, or bytes behind the last; blanks in the
/// header other than spaces; dtypes that the format has not, or of parts of bytes; BOOLs that are neither 0 nor 1.
/// Messages name the file, the byte or the key, and the limit.
class Safetensors {
public:
    /// Reads the header, and BOOLs; other data when it is asked for. Throws Error.
    explicit Safetensors(const std::filesystem::path& path);
    /// The same of bytes in memory, which must stay there; `where` stands for the file's name in messages. Throws
    /// Error.
    Safetensors(std::span<const std::byte> bytes, std::string where);

    /// Name, type, shape and place of each tensor, by their places.
    const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
    const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
    bool contains(const std::string& name) const { return index_.contains(name); }
    /// Throws Error if the file has no tensor of that name.
    const SafetensorsEntry& entry(const std::string& name) const;
    /// As they lie in the file, dense rows; as long as this object lives. Throws what entry() throws.
    std::span<const std::byte> bytes(const std::string& name) const;
    /// A copy, bit for bit. Throws what entry() throws, and Error if its dtype is one that no Type is (I16, U16, U64,
    /// C64, F8_E8M0): such files open, and all else in them is read.
    HostArray array(const std::string& name) const;

private:
    void set_index();

    std::optional<MappedFile> file_;
    std::string where_;
    std::span<const std::byte> bytes_;  // of the whole file
    SafetensorsHeader header_;
    std::map<std::string, size_t> index_;  // of entries, by name
};

/// A tensor to be written. Its elements are asked for when their turn comes, so that of all tensors only one need be in
/// host memory.
struct SafetensorsSource {
    std::string name;
    Type type = Type::F32;
    std::vector<int64_t> shape;
    std::function<HostArray()> array;  ///< of that type and shape, with any strides
};

/// Replaces the file, as write_aside() does (write_aside.h). Wide elements come first, so that all are aligned, and
/// otherwise tensors stand in the order given; the same arguments give the same bytes. Throws Error, and leaves the
/// file as it was, if a name stands twice, is "__metadata__" or no UTF-8, if a type is tf32, for which the format has
/// no name, or if the header exceeds 100,000,000 bytes; and what write_aside() throws.
void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsSource>& sources,
                       const std::map<std::string, std::string>& metadata = {});
void write_safetensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, HostArray>>& arrays,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tw

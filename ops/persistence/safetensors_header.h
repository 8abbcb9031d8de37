// The header of a safetensors file: read without trust, and written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/type.h"

namespace tw {

/// What the header tells of a tensor.
struct SafetensorsEntry {
    std::string name;
    Type type = Type::F32;
    std::vector<int64_t> shape;
    int64_t begin = 0, end = 0;  ///< its bytes, counted from the end of the header on
    /// The file's dtype, "I16", where no Type is that; `type` then only has as many bytes.
    std::string foreign_dtype = {};

    std::string_view type_text() const { return foreign_dtype.empty() ? name_of(type) : foreign_dtype; }
};

struct SafetensorsHeader {
    std::vector<SafetensorsEntry> entries;  ///< by their places in the file
    std::map<std::string, std::string> metadata;
    int64_t data_begin = 0;  ///< the byte of the file that places are counted from
};

/// Checks all that safetensors.h lists. `file` are the bytes of a whole file, and `where` its name in messages. What
/// this allocates is at most a small multiple of the header's bytes, whatever numbers stand in it.
SafetensorsHeader read_safetensors_header(std::span<const std::byte> file, const std::string& where);

/// The first bytes of a file with these tensors, whose places this sets: one behind the other, as they stand. With the
/// header's length, and padded with spaces so that data begins at a multiple of 64. Throws Error if a name stands
/// twice, is "__metadata__" or no UTF-8, and where the header exceeds the format's limit.
std::string write_safetensors_header(std::vector<SafetensorsEntry>& entries,
                                     const std::map<std::string, std::string>& metadata);

/// "BOOL, I8, ...": those that are a Type.
std::string known_dtypes();

/// "F32". Throws Error for tf32, which the format has no name for; `name` is the tensor's in the message.
std::string_view safetensors_dtype(Type type, const std::string& name);

}  // namespace tw

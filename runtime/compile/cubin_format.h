// The bytes of a cache entry: flat, length-prefixed, checked.
//
//   8  "TWCUBIN\n"
//   4  format version, 4 zero
//   8  bytes of the key, 8 bytes of the payload      (little endian)
//      key, payload
//  16  XXH3-128 of all of the above
#pragma once
#include <string>
#include <string_view>

namespace tw {

std::string pack_entry(std::string_view key, std::string_view payload);

struct UnpackedEntry {
    std::string_view key, payload;  // into the bytes that were given
    std::string problem;            // empty when the entry is whole
};
UnpackedEntry unpack_entry(std::string_view bytes);

/// "<32 hexadecimal digits of the key's XXH3-128>.twc"
std::string entry_file_name(std::string_view key);

}  // namespace tw

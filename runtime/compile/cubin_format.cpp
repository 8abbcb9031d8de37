#include "runtime/compile/cubin_format.h"

#include <cstring>

#include <fmt/core.h>

#include <xxhash.h>

namespace tw {
namespace {

constexpr std::string_view Magic = "TWCUBIN\n";
constexpr uint32_t FormatVersion = 1;

struct Header {
    char magic[8];
    uint32_t version;
    uint32_t zero;
    uint64_t key_bytes;
    uint64_t payload_bytes;
};
static_assert(sizeof(Header) == 32);

using Checksum = XXH128_canonical_t;
static_assert(sizeof(Checksum) == 16);

Checksum checksum(std::string_view bytes) {
    Checksum canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
    return canonical;
}

}  // namespace

std::string pack_entry(std::string_view key, std::string_view payload) {
    Header header{{}, FormatVersion, 0, key.size(), payload.size()};
    std::memcpy(header.magic, Magic.data(), Magic.size());
    std::string bytes;
    bytes.reserve(sizeof header + key.size() + payload.size() + sizeof(Checksum));
    bytes.append(reinterpret_cast<const char*>(&header), sizeof header).append(key).append(payload);
    Checksum sum = checksum(bytes);
    return bytes.append(reinterpret_cast<const char*>(sum.digest), sizeof sum);
}

UnpackedEntry unpack_entry(std::string_view bytes) {
    auto damaged = [](std::string problem) { return UnpackedEntry{{}, {}, std::move(problem)}; };
    Header header;
    if (bytes.size() < sizeof header + sizeof(Checksum))
        return damaged(fmt::format("{} bytes are too few for an entry", bytes.size()));
    std::memcpy(&header, bytes.data(), sizeof header);
    if (std::string_view(header.magic, sizeof header.magic) != Magic) return damaged("it does not begin like an entry");
    if (header.version != FormatVersion || header.zero != 0)
        return damaged(fmt::format("format {}, expected {}", header.version, FormatVersion));

    // By subtraction from what is there: a sum of two sizes out of the file could wrap.
    uint64_t rest = bytes.size() - sizeof header - sizeof(Checksum);
    if (header.key_bytes > rest || header.payload_bytes != rest - header.key_bytes)
        return damaged(fmt::format("{} bytes of key and {} of payload do not make its {} bytes", header.key_bytes,
                                   header.payload_bytes, bytes.size()));
    std::string_view summed = bytes.substr(0, bytes.size() - sizeof(Checksum));
    Checksum sum = checksum(summed);
    if (std::memcmp(sum.digest, bytes.data() + summed.size(), sizeof sum) != 0) return damaged("its checksum is wrong");
    return {summed.substr(sizeof header, header.key_bytes), summed.substr(sizeof header + header.key_bytes), ""};
}

std::string entry_file_name(std::string_view key) {
    XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
    return fmt::format("{:016x}{:016x}.twc", hash.high64, hash.low64);
}

}  // namespace tw

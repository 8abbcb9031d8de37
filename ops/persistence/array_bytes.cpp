#include "ops/persistence/array_bytes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "support/error.h"

namespace tw {

static_assert(std::endian::native == std::endian::little, "elements are copied as they lie in memory");

std::optional<int64_t> dense_bytes(Type type, const std::vector<int64_t>& shape) {
    int64_t bytes = bytes_of(type);
    bool is_empty = false;
    for (const int64_t extent : shape) {
        if (extent < 0) return {};
        if (extent == 0)
            is_empty = true;
        else if (__builtin_mul_overflow(bytes, extent, &bytes))
            return {};
    }
    return is_empty ? 0 : bytes;
}

HostArray dense_array(Type type, const std::vector<int64_t>& shape, std::span<const std::byte> bytes) {
    return {type, shape, dense_strides(shape), {bytes.begin(), bytes.end()}};
}

int64_t require_dense_bytes(const std::string& name, Type type, const std::vector<int64_t>& shape) {
    const std::optional<int64_t> bytes = dense_bytes(type, shape);
    if (!bytes)
        throw_error(Error, "'{}': a shape {} of {} has a negative extent, or exceeds 2^63 - 1 bytes; give another one",
                    printable(name), indices_text(shape), name_of(type));
    return *bytes;
}

HostArray dense_rows(const std::string& name, HostArray array) {
    require_dense_bytes(name, array.type, array.shape);
    const bool fits =
        array.strides.size() == array.shape.size() &&
        std::ranges::all_of(array.strides, [](int64_t stride) { return stride >= 0; }) &&
        std::cmp_equal(array.bytes.size(), span_elements(array.shape, array.strides) * bytes_of(array.type));
    if (!fits)
        throw_error(Error, "'{}': {} bytes are no array {} with strides {} of {}; make it with host_array()",
                    printable(name), array.bytes.size(), indices_text(array.shape), indices_text(array.strides),
                    name_of(array.type));
    if (array.strides == dense_strides(array.shape)) return array;
    HostArray rows = host_array(array.type, array.shape);
    if (rows.bytes.empty()) return rows;
    const auto width = static_cast<size_t>(bytes_of(array.type));
    std::vector<int64_t> at(array.shape.size());
    std::byte* to = rows.bytes.data();
    do {
        std::memcpy(to, &array.bytes[static_cast<size_t>(array.offset(at)) * width], width);
        to += width;
    } while (advance(at, array.shape));
    return rows;
}

std::optional<size_t> first_no_bool(std::span<const std::byte> bytes) {
    const auto found = std::ranges::find_if(bytes, [](std::byte byte) { return std::to_integer<int>(byte) > 1; });
    if (found == bytes.end()) return {};
    return static_cast<size_t>(found - bytes.begin());
}

std::string printable(const std::string& name) {
    constexpr size_t Longest = 80;
    const nlohmann::json text = name.size() <= Longest ? name : name.substr(0, Longest - 3) + "...";
    const std::string quoted = text.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    return quoted.substr(1, quoted.size() - 2);
}

}  // namespace tw

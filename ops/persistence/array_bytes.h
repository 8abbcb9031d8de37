// Arrays as files hold them: dense rows of little-endian elements.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsl/host_array.h"

namespace tw {

/// The bytes of dense rows; nothing if an extent is negative, or where the product of those that are not 0 leaves
/// int64_t: an array [0, 2^62, 2^62] has no bytes, and strides that no number can tell.
std::optional<int64_t> dense_bytes(Type type, const std::vector<int64_t>& shape);

/// The same. Throws Error where there is no such number; `name` is the array's in the message.
int64_t require_dense_bytes(const std::string& name, Type type, const std::vector<int64_t>& shape);

/// The array with these bytes, dense_bytes() many.
HostArray dense_array(Type type, const std::vector<int64_t>& shape, std::span<const std::byte> bytes);

/// The same elements in dense rows; `name` is the array's in messages. Throws Error if the array has other bytes than
/// its shape and strides span.
HostArray dense_rows(const std::string& name, HostArray array);

/// The first byte that is neither 0 nor 1: kernels read those as bools, and nothing else may stand there.
std::optional<size_t> first_no_bool(std::span<const std::byte> bytes);

/// A name out of a file as it may stand in a message: without control characters or broken UTF-8, and 80 bytes at most.
std::string printable(const std::string& name);

}  // namespace tw

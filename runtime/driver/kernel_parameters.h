// The parameters of a kernel, read from its text: so that a wrong argument is refused where no driver tells them (the
// emulated and the null device, drivers before 12.4).
#pragma once
#include <optional>
#include <string_view>
#include <vector>

namespace tw {

/// The size of each parameter of `entry` in bytes, 0 for a type that is not known here; nothing where the text has no
/// such function that can be read.
std::optional<std::vector<size_t>> kernel_parameters(std::string_view source, std::string_view entry);

/// How many parameters the machine code of `entry` has, by the notes that ptxas leaves for the driver; nothing where
/// they cannot be read.
std::optional<size_t> count_parameters(std::string_view cubin, std::string_view entry);

}  // namespace tw

// Kernels of a user's shared object: see schedules/register_kernel.h.
#pragma once
#include <string>

namespace tw {

/// Opens the file, whose kernels are then among schedules::registered_kernels(). Throws Error for a file that is none,
/// is no shared object, misses what this program has not, registers nothing, or what registered_kernels() refuses.
void load_kernels(const std::string& path);

}  // namespace tw

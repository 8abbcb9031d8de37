// Inputs that make differences visible.
#pragma once
#include <vector>

#include "dsl/interpret.h"

namespace tw::fuzz {

inline constexpr int kKindsOfData = 4, kWholeNumbers = 1;

/// By turns of the seed: reals in [-1, 1); integers -3..3, with many ties; rows whose elements are so far apart that a
/// maximum which misses one lets exp() overflow, some of them with a few equal maxima anywhere, so that ties are broken
/// between distant elements too, or -infinity or 0 throughout; reals of all sizes, so that other orders of operations
/// round otherwise.
Bindings telling_bindings(const std::vector<Tensor>& outputs, uint64_t seed);

}  // namespace tw::fuzz

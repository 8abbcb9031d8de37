// Additions to memory by the copy engine.
#pragma once
#include <cstddef>

#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw::emulator {

/// Adds elements to those at `to`: floats rounded to nearest even, integers wrap.
void reduce_add(TensorElement element, unsigned char* to, const unsigned char* from, size_t bytes);

}  // namespace tw::emulator
